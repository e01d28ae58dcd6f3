"""A tenant with rows in every table that can have some of a tenant, and what the database knows of it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from batchline.batches.finalize import finalize_one
from batchline.config.settings import LimitSettings
from batchline.files.objects import INPUTS, PARTS, Objects
from batchline.governance import bulk_actions, keys, limit_changes, limits, webhooks
from batchline.governance.access import Actor
from batchline.model import RequestKind, Role
from batchline.model.bulk_action import BatchFilter, BulkKind
from batchline.model.ids import new_id
from batchline.store import batches, browser_sessions, feeding, files, schedules, spans, uploads
from batchline.store import webhooks as store_webhooks
from batchline.store.idempotency import IdempotencyKey
from batchline.store.maintenance import take_event
from batchline.store.schedules import NewSchedule
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.store.uploads import NewUpload, Part
from tests.support import governance, hooks
from tests.support.builders import a_batch, a_worker, completed, failed, kill, park, read, retry, sql, take
from tests.support.objects import blocks

OPERATOR = Actor("ops", "olga", Role.OPERATOR)
# Tables in which an erased tenant stays: the audit log, and the name that gets no new data.
KEPT = {"audit_log", "tenants"}


def mark_of(tenant: str) -> str:
    """In every text of the tenant, as far as it can be chosen."""
    return f"secret-of-{tenant}"


async def a_stored_file(db: Session, objects: Objects, tenant: str) -> UUID:
    """An uploaded file of six lines, with an idempotency key."""
    mark, file_id, key = mark_of(tenant).encode(), new_id(), f"{INPUTS}{new_id().hex}"
    await objects.write(key, blocks(b"%b\n" % mark * 6))
    async with files.incoming(db) as incoming:
        remembered = IdempotencyKey(tenant, "files", f"{mark.decode()} {file_id}", b"x" * 32)
        await incoming.remember(remembered, file_id)
        async with incoming.lines() as writer:
            names = [b"%b %d" % (mark, n) for n in range(6)]
            bodies = [b'{"prompt": "%b"}' % mark] * 6
            await writer.write([0] * 6, list(range(6)), list(range(1, 7)), names, bodies)
        lane = files.FileLane(mark.decode(), "/v1/chat/completions", 6)
        new = files.NewFile(
            file_id, tenant, "batch", f"{mark.decode()}.jsonl", 6 * (len(mark) + 1), b"d" * 32, [lane], key
        )
        await incoming.add(new)
    return file_id


async def a_full_tenant(db: Session, objects: Objects, tenant: str) -> None:
    """Rows of the tenant in every table that can have some."""
    await _account(db, tenant)
    await _upload(db, objects, tenant)
    file_id = await a_stored_file(db, objects, tenant)
    await _ended_batch(db, objects, tenant, file_id)
    await _running_batch(db, tenant, file_id)
    await _parked_batch(db, tenant, file_id)
    await governance.submit(db, governance.some_rules(), Actor(tenant, mark_of(tenant), Role.USER), 3)
    deleted = await a_batch(db, 2, tenant=tenant)
    await sql(db, "DELETE FROM batchline.batches WHERE id = %(id)s", id=deleted.id)


async def _account(db: Session, tenant: str) -> None:
    mark = mark_of(tenant)
    actor = Actor(tenant, mark, Role.ADMIN)
    await keys.create(db, mark, tenant, Role.ADMIN)
    ((key_id,),) = await sql(db, "SELECT id FROM batchline.api_keys WHERE name = %(name)s", name=mark)
    await browser_sessions.add(db, mark.encode(), key_id, lifetime=3600, maximum=10)
    await bulk_actions.start(db, actor, BulkKind.PAUSE, BatchFilter(q=mark))
    await schedules.register(db, tenant, [NewSchedule(mark, "0 3 * * * UTC", datetime.now(UTC))])
    await webhooks.add(
        db, actor, name=mark, url=f"https://{mark}.example/", events=["batch.completed"], secret=mark
    )
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await limit_changes.exempt(db, actor, mark, reason=mark, expires_at=tomorrow)
    await limit_changes.set_limits(db, actor, mark, parents=10, children=10, cooldown=0, reason=mark)
    await limits.count_request(db, LimitSettings(), actor, RequestKind.READ)


async def _upload(db: Session, objects: Objects, tenant: str) -> None:
    mark, key = mark_of(tenant), f"{PARTS}{new_id().hex}"
    new = NewUpload(new_id(), tenant, "batch", mark, "text/plain", 10, None, 3600)
    upload = await uploads.create(db, new)
    await objects.write(key, blocks(mark.encode()))
    await uploads.add_part(db, tenant, upload.id, Part(new_id(), 10, key), max_parts=10, max_bytes=100)


async def _ended_batch(db: Session, objects: Objects, tenant: str, file_id: UUID) -> None:
    """With results, failures, a retry, output and error files, and an event that was delivered."""
    mark, worker = mark_of(tenant), a_worker()
    batch = await a_batch(db, file_id=file_id, tenant=tenant)
    first, second, *rest = await take(db, worker, scope=Scope(batch_id=batch.id))
    await spans.settle(db, worker.id, [failed(first), retry(second)])
    again = await take(db, worker, scope=Scope(batch_id=batch.id))
    await spans.settle(db, worker.id, [completed(item) for item in (*again, *rest)])
    assert await finalize_one(db, objects, worker, batch.id)
    await sql(
        db,
        "INSERT INTO batchline.line_hashes SELECT f.no, 0, 0, '{1}', '{1}', '{0}', '{1}'"
        " FROM batchline.files AS f WHERE f.id = %(file)s",
        file=file_id,
    )
    ((file_no,),) = await sql(db, "SELECT no FROM batchline.files WHERE id = %(file)s", file=file_id)
    assert await feeding.take_keys(db, tenant, "same", file_no, [mark.encode()])
    event = await take_event(db)
    assert event is not None
    await store_webhooks.fan_out(db, event.id)
    await hooks.fan_out(db)
    await sql(db, "UPDATE batchline.outbox SET available_at = now() WHERE delivered_at IS NULL")
    await hooks.fan_out(db)
    await sql(
        db,
        "UPDATE batchline.hook_deliveries SET last_output = %(mark)s WHERE batch_id = %(batch)s",
        mark=mark,
        batch=batch.id,
    )


async def _running_batch(db: Session, tenant: str, file_id: UUID) -> None:
    """Half run by a worker that is gone, with a cap, pauses and lines that a provider may have accepted."""
    worker = a_worker(lease=-1)
    batch = await a_batch(db, file_id=file_id, tenant=tenant)
    first, *_ = await take(db, worker, 3, Scope(batch_id=batch.id))
    await spans.settle(db, worker.id, [failed(first)])
    for insert in (
        "INSERT INTO batchline.budget_holds (batch_id, holder, worker_id, busy, cost, tokens)"
        " VALUES (%(batch)s, %(batch)s, %(batch)s, false, 1, 1)",
        "INSERT INTO batchline.failure_pauses (batch_id, failed_before, completed_before)"
        " VALUES (%(batch)s, 0, 0)",
        "INSERT INTO batchline.provider_chunks"
        " (id, batch_id, lane_id, span_id, upstream, attempt, ordinals, lines, bytes, tokens)"
        " SELECT gen_random_uuid(), %(batch)s, n.id, 0, n.key, 1, '{[0,1)}', 1, 9, 3"
        " FROM batchline.lanes AS n WHERE n.batch_id = %(batch)s LIMIT 1",
        "INSERT INTO batchline.duplicates (batch_id, lane_id, first, ordinals, line_nos, leaders)"
        " SELECT %(batch)s, n.id, 3, '{3}', '{4}', '{1}'"
        " FROM batchline.lanes AS n WHERE n.batch_id = %(batch)s LIMIT 1",
        "INSERT INTO batchline.lost_submissions"
        " SELECT %(batch)s, id, 'unknown', '{[2,3)}' FROM batchline.lanes WHERE batch_id = %(batch)s",
        "INSERT INTO batchline.usage_counted VALUES (%(batch)s, 0, 0, 0, 0, 0, 0, 0, 0)",
    ):
        await sql(db, insert, batch=batch.id)


async def _parked_batch(db: Session, tenant: str, file_id: UUID) -> None:
    """Two lines are tasks of a provider."""
    worker = a_worker()
    batch = await a_batch(db, file_id=file_id, tenant=tenant)
    first, second, *_ = await take(db, worker, scope=Scope(batch_id=batch.id))
    await park(db, worker, [first], f"{mark_of(tenant)} 1", delay=3600)
    await park(db, worker, [second], f"{mark_of(tenant)} 2", delay=3600)
    await kill(db, worker)
    worker = a_worker()
    cancelled = await a_batch(db, file_id=file_id, tenant=tenant)
    (third, *_) = await take(db, worker, scope=Scope(batch_id=cancelled.id))
    await park(db, worker, [third], f"{mark_of(tenant)} 3", delay=3600)
    await kill(db, worker)
    await batches.close(db, cancelled.id, "cancel")
    assert (await read(db, cancelled)).finalizing_at is not None


class Identity(NamedTuple):
    """How rows of a tenant can be recognized: by a text in them, or by a number in a column of that name."""

    texts: tuple[str, ...]
    numbers: dict[str, frozenset[int]]


async def identity_of(db: Session, tenant: str) -> Identity:
    """Everything that identifies rows of the tenant, read before it is erased."""
    ids = await sql(
        db,
        """
        SELECT id FROM batchline.batches WHERE tenant = %(tenant)s
        UNION SELECT batch_id FROM batchline.deleted_batches WHERE tenant = %(tenant)s
        UNION SELECT id FROM batchline.files WHERE tenant = %(tenant)s
        UNION SELECT id FROM batchline.uploads WHERE tenant = %(tenant)s
        UNION SELECT id FROM batchline.webhooks WHERE tenant = %(tenant)s
        UNION SELECT id FROM batchline.api_keys WHERE tenant = %(tenant)s
        """,
        tenant=tenant,
    )
    numbers = await sql(
        db,
        """
        SELECT 'file_no', no FROM batchline.files WHERE tenant = %(tenant)s
        UNION SELECT 'lane_id', id FROM batchline.lanes WHERE tenant = %(tenant)s
        UNION SELECT 'lane_id', n.lane_id
        FROM batchline.deleted_lanes AS n
        JOIN batchline.deleted_batches AS d USING (batch_id)
        WHERE d.tenant = %(tenant)s
        """,
        tenant=tenant,
    )
    columns = {column for column, _ in numbers}
    return Identity(
        (mark_of(tenant), f'"{tenant}"', *(str(id) for (id,) in ids)),
        {column: frozenset(no for name, no in numbers if name == column) for column in columns},
    )


async def traces(db: Session, identity: Identity) -> dict[str, int]:
    """In which tables there are how many rows that belong to the tenant, found by reading the database."""
    found: dict[str, int] = {}
    for table in await tables(db):
        rows = [row for (row,) in await sql(db, f"SELECT to_jsonb(t) FROM batchline.{table} AS t")]
        count = sum(1 for row in rows if _belongs(row, identity))
        if count:
            found[table] = count
    return found


def _belongs(row: dict[str, object], identity: Identity) -> bool:
    written = str(row).replace("'", '"')
    return any(text in written for text in identity.texts) or any(
        row.get(column) in numbers for column, numbers in identity.numbers.items()
    )


async def tables(db: Session) -> Iterable[str]:
    rows = await sql(
        db,
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'batchline'::regnamespace"
        " AND relkind IN ('r', 'p') ORDER BY relname",
    )
    return [name for (name,) in rows]

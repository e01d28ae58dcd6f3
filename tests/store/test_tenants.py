"""Quotas hold whatever happens at once, bytes come back, and usage is counted once."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from batchline.batches import deletion, retention
from batchline.batches.finalize import finalize_one
from batchline.batches.retry import retry as retry_batch
from batchline.files import ingest, uploads
from batchline.files.objects import Objects
from batchline.governance import tenants as governed
from batchline.governance.access import Actor
from batchline.governance.errors import NotAllowed, NotFound
from batchline.model import DEFAULT_TENANT, Batch, RetrySelection, Role, TenantUsage
from batchline.model.ids import new_id
from batchline.store import doctor, files, spans, tenants
from batchline.store import uploads as store_uploads
from batchline.store.session import Session, StorageQuotaExceeded
from batchline.store.tenants import UsageQuery
from batchline.store.uploads import NewUpload
from tests.support import governance
from tests.support.builders import (
    a_batch,
    a_file,
    a_worker,
    complete,
    failed,
    finalize,
    read,
    run_to_the_end,
    sql,
    take,
)

OPERATOR = Actor("ops", "olga", Role.OPERATOR)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


async def a_tenant(db: Session, name: str = "acme", *, quota: int | None = None) -> str:
    await sql(db, "INSERT INTO batchline.tenants (name) VALUES (%(name)s) ON CONFLICT DO NOTHING", name=name)
    await governed.set_quota(db, OPERATOR, name, quota)
    return name


async def stored(db: Session, tenant: str = "acme") -> int:
    found = await tenants.get(db, tenant)
    return 0 if found is None else found.stored


async def add_file(db: Session, size: int, tenant: str = "acme", purpose: str = "batch") -> UUID:
    async with files.incoming(db) as incoming:
        new = files.NewFile(
            new_id(), tenant, purpose, "f.jsonl", size, b"digest", object_key=f"inputs/{size}"
        )
        return (await incoming.add(new)).id


async def waits(url: str, task: "asyncio.Task[object]") -> None:
    """Returns when the task waits for the lock of another transaction."""
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with Session(url, "watch") as watch:
        while not await sql(watch, query):
            assert not task.done(), "it does not wait"


async def clean(db: Session) -> bool:
    return (await doctor.examine(db)).findings == ()


# Quotas


async def test_files_up_to_the_quota_are_stored_and_one_byte_more_is_not(db: Session) -> None:
    await a_tenant(db, quota=100)
    await add_file(db, 60)
    await add_file(db, 40)
    with pytest.raises(
        StorageQuotaExceeded,
        match=r'^tenant "acme" stores 100 bytes of its quota of 100, so 1 more do not fit$',
    ):
        await add_file(db, 1)
    assert await stored(db) == 100
    assert await clean(db)


async def test_a_tenant_without_a_quota_and_other_tenants_are_not_limited(db: Session) -> None:
    await a_tenant(db, quota=0)
    await add_file(db, 10**12, "other")
    await add_file(db, 10**12, "other")
    assert await stored(db, "other") == 2 * 10**12
    with pytest.raises(StorageQuotaExceeded):
        await add_file(db, 1)


async def test_a_quota_that_is_removed_limits_nothing(db: Session) -> None:
    await a_tenant(db, quota=10)
    await governed.set_quota(db, OPERATOR, "acme", None)
    await add_file(db, 11)


async def test_a_smaller_quota_deletes_nothing_and_accepts_nothing(db: Session) -> None:
    await a_tenant(db)
    await add_file(db, 100)
    await governed.set_quota(db, OPERATOR, "acme", 50)
    assert await stored(db) == 100
    with pytest.raises(StorageQuotaExceeded):
        await add_file(db, 1)


async def test_two_uploads_cannot_exceed_the_quota_together(database_url: str, db: Session) -> None:
    """The second waits for the first, which has not committed, and then finds no room."""
    await a_tenant(db, quota=100)
    async with Session(database_url, "second") as other:
        async with files.incoming(db) as incoming:
            new = files.NewFile(new_id(), "acme", "batch", "f", 60, b"", object_key="inputs/1")
            await incoming.add(new)
            second = asyncio.create_task(add_file(other, 60))
            await waits(database_url, second)
        with pytest.raises(StorageQuotaExceeded):
            await second
    assert await stored(db) == 60
    assert await clean(db)


async def test_an_upload_that_is_rolled_back_leaves_its_room_to_the_next(
    database_url: str, db: Session
) -> None:
    await a_tenant(db, quota=100)
    first = asyncio.Event()

    async def abandoned() -> None:
        async with files.incoming(db) as incoming:
            await incoming.add(files.NewFile(new_id(), "acme", "batch", "f", 60, b"", object_key="inputs/1"))
            await first.wait()
            raise ZeroDivisionError

    one = asyncio.create_task(abandoned())
    async with Session(database_url, "second") as other, Session(database_url, "watch") as watch:
        while not await sql(
            watch, "SELECT 1 FROM pg_locks WHERE relation = 'batchline.tenant_usage'::regclass"
        ):
            assert not one.done()
        second = asyncio.create_task(add_file(other, 60))
        await waits(database_url, second)
        first.set()
        await second
    with pytest.raises(ZeroDivisionError):
        await one
    assert await stored(db) == 60
    assert await clean(db)


async def test_of_many_uploads_at_once_as_many_are_stored_as_fit(database_url: str, db: Session) -> None:
    await a_tenant(db, quota=100)

    async def one(session: Session) -> bool:
        async with session:
            try:
                await add_file(session, 30)
            except StorageQuotaExceeded:
                return False
            return True

    done = await asyncio.gather(*(one(Session(database_url, f"upload {n}")) for n in range(10)))
    assert sorted(done) == [False] * 7 + [True] * 3
    assert await stored(db) == 90
    assert await clean(db)


async def test_the_first_uploads_of_two_new_tenants_do_not_wait_for_each_other(
    database_url: str, db: Session
) -> None:
    async with Session(database_url, "second") as other, files.incoming(db) as incoming:
        await incoming.add(files.NewFile(new_id(), "acme", "batch", "f", 1, b"", object_key="inputs/1"))
        await add_file(other, 2, "other")
    assert (await stored(db), await stored(db, "other")) == (1, 2)


async def test_an_input_of_a_command_that_does_not_fit_leaves_nothing(database_url: str, db: Session) -> None:
    await a_tenant(db, DEFAULT_TENANT, quota=50)
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}\n'
    with pytest.raises(StorageQuotaExceeded):
        await ingest.ingest(
            database_url, [ingest.InputSource("in.jsonl", [line])], tenant=DEFAULT_TENANT, filename="in.jsonl"
        )
    assert await sql(db, "SELECT 1 FROM batchline.lines") == []
    assert await clean(db)


async def test_operations_count_and_are_refused_with_nothing_stored(db: Session) -> None:
    rules = governance.some_rules()
    await a_tenant(db, quota=10)
    with pytest.raises(StorageQuotaExceeded):
        await governance.submit(db, rules, governance.ANNA, 3)
    assert await sql(db, "SELECT 1 FROM batchline.batches") == []
    await governed.set_quota(db, OPERATOR, "acme", None)
    batch = await governance.submit(db, rules, governance.ANNA, 3, hold=True)
    before = await stored(db)
    assert before > 0
    await governed.set_quota(db, OPERATOR, "acme", before)
    with pytest.raises(StorageQuotaExceeded):
        await governance.append(rules, db, governance.ANNA, batch.id, governance.items(2))
    assert await stored(db) == before
    assert await clean(db)


async def test_outputs_are_always_stored_and_then_new_batches_are_refused(
    db: Session, objects: Objects
) -> None:
    """An answer that was paid for is never thrown away."""
    worker = a_worker()
    file_id = await a_file(db, {"m": 3}, tenant="acme")
    await governed.set_quota(db, OPERATOR, "acme", 10)
    batch = await a_batch(db, file_id=file_id, tenant="acme")
    await run_to_the_end(db, worker)
    ended = await finalize_one(db, objects, worker, batch.id)
    assert ended is not None
    assert ended.output_file_id is not None
    size = await stored(db)
    assert size > 10
    with pytest.raises(
        StorageQuotaExceeded, match=f'^tenant "acme" stores {size} bytes, more than its quota'
    ):
        await a_batch(db, file_id=file_id, tenant="acme")
    assert await files.delete(db, "acme", ended.output_file_id)
    await a_batch(db, file_id=file_id, tenant="acme")
    assert await clean(db)


# Bytes come back


async def test_a_deleted_file_gives_its_bytes_back_at_once(db: Session) -> None:
    await a_tenant(db, quota=100)
    file_id = await add_file(db, 100)
    assert await files.delete(db, "acme", file_id)
    assert await stored(db) == 0
    await add_file(db, 100)
    assert await clean(db)


async def test_a_file_that_a_running_batch_needs_counts_until_its_data_is_deleted(
    db: Session, objects: Objects
) -> None:
    """Otherwise a tenant could keep any amount in deleted files of paused batches."""
    file_id, worker = await a_file(db, {"m": 2}, tenant="acme"), a_worker()
    await sql(db, "UPDATE batchline.files SET bytes = 100")
    batch = await a_batch(db, file_id=file_id, tenant="acme")
    await files.delete(db, "acme", file_id)
    assert await stored(db) == 100
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)
    await retention.enforce(db, objects, None)
    assert await stored(db) == 0
    assert await clean(db)


async def test_an_expired_file_gives_its_bytes_back(db: Session, objects: Objects) -> None:
    for tenant in ("acme", "other"):
        await add_file(db, 10, tenant)
        await add_file(db, 20, tenant)
    await sql(db, "UPDATE batchline.files SET expires_at = now() WHERE bytes = 10")
    await retention.enforce(db, objects, None)
    assert (await stored(db), await stored(db, "other")) == (20, 20)
    assert await clean(db)


async def test_a_deleted_batch_gives_its_bytes_back(db: Session, objects: Objects) -> None:
    batch, worker = await a_batch(db, 3), a_worker()
    await run_to_the_end(db, worker)
    assert await finalize_one(db, objects, worker, batch.id)
    assert await stored(db, DEFAULT_TENANT) > 0
    await deletion.delete(db, objects, await read(db, batch), force=False)
    assert await stored(db, DEFAULT_TENANT) == 0
    assert await clean(db)


async def test_rows_that_are_deleted_by_hand_give_their_bytes_back(db: Session) -> None:
    await add_file(db, 10)
    await add_file(db, 20)
    await sql(db, "DELETE FROM batchline.files WHERE bytes = 20")
    assert await stored(db) == 10


# Uploads in parts


def an_upload(size: int, *, lifetime: float = 3600.0) -> NewUpload:
    return NewUpload(new_id(), "acme", "batch", "f.jsonl", "text/plain", size, None, lifetime)


async def test_an_upload_reserves_its_size_and_its_file_takes_it_over(db: Session) -> None:
    await a_tenant(db, quota=100)
    upload = await store_uploads.create(db, an_upload(80))
    assert await stored(db) == 80
    with pytest.raises(StorageQuotaExceeded):
        await store_uploads.create(db, an_upload(30))
    async with files.incoming(db) as incoming:
        new = files.NewFile(new_id(), "acme", "batch", "f", 80, b"", object_key="inputs/1")
        assert await incoming.complete_upload(upload.id, new.id)
        await incoming.add(new)
    assert await stored(db) == 80
    assert await clean(db)


async def test_a_completion_makes_no_other_upload_wait_while_lines_are_read(
    database_url: str, db: Session
) -> None:
    upload = await store_uploads.create(db, an_upload(80))
    async with Session(database_url, "second") as other, files.incoming(db) as incoming:
        await incoming.complete_upload(upload.id, new_id())
        await add_file(other, 1)


async def test_a_cancelled_and_an_expired_upload_give_back_what_they_reserved(
    db: Session, objects: Objects
) -> None:
    upload = await store_uploads.create(db, an_upload(80))
    await store_uploads.create(db, an_upload(7, lifetime=-7200.0))
    assert await stored(db) == 87
    await store_uploads.cancel(db, "acme", upload.id)
    assert await stored(db) == 7
    await uploads.clear_all(db, objects)
    assert await stored(db) == 0
    assert await clean(db)


# Doctor


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "UPDATE batchline.tenant_usage SET stored = 11",
            'tenant "acme" stores 10 bytes, but 11 are counted',
        ),
        (
            "ALTER TABLE batchline.files DISABLE TRIGGER ALL; UPDATE batchline.files SET charged = 9",
            "9 of its 10 bytes count for the quota of its tenant",
        ),
        (
            "INSERT INTO batchline.tenant_usage OVERRIDING SYSTEM VALUE"
            " SELECT tenant, day, seq + 1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM batchline.tenant_usage",
            'tenant "acme" has 2 rows for ',
        ),
        (
            "UPDATE batchline.tenants SET erased_at = now()",
            'tenant "acme" was erased, but files has 1 rows of it',
        ),
    ],
)
async def test_the_doctor_finds_wrong_counts_and_remains(db: Session, damage: str, message: str) -> None:
    await add_file(db, 10, purpose="user_data")
    assert await clean(db)
    for each in damage.split("; "):
        await sql(db, each)
    found = [str(finding) for finding in (await doctor.examine(db)).findings]
    assert any(message in each for each in found), found


# Usage


def today() -> date:
    return datetime.now(UTC).date()


async def usage(db: Session, tenant: str | None = "acme", **query: Any) -> list[TenantUsage]:
    whole: dict[str, Any] = {"since": date(2000, 1, 1), "until": date(3000, 1, 1), "by": "total", **query}
    return await tenants.usage(db, UsageQuery(tenant, **whole))


async def a_run_batch(db: Session, completed: int, failures: int, *, tenant: str = "acme") -> Batch:
    batch, worker = await a_batch(db, completed + failures, tenant=tenant), a_worker()
    items = await take(db, worker)
    await complete(db, worker, items[:completed])
    if failures:
        await spans.settle(db, worker.id, [failed(item) for item in items[completed:]])
    return await finalize(db, worker, batch)


async def test_a_batch_counts_once_on_the_day_on_which_it_ends(db: Session) -> None:
    await a_run_batch(db, 3, 1)
    await a_run_batch(db, 2, 0)
    (found,) = await usage(db, by="day")
    assert (found.tenant, found.period, found.batches, found.lines, found.failed) == (
        "acme",
        today(),
        2,
        6,
        1,
    )
    assert (found.input_tokens, found.output_tokens) == (15, 25)
    assert await tenants.running(db, "acme") == []


async def test_a_running_batch_is_reported_apart(db: Session) -> None:
    await a_batch(db, 5, tenant="acme")
    worker = a_worker()
    await complete(db, worker, await take(db, worker, 2))
    assert [(each.lines, each.input_tokens) for each in await tenants.running(db, None)] == [(2, 6)]
    assert sum(each.lines for each in await usage(db)) == 0


async def test_a_retried_line_counts_again_and_no_other_line_does(db: Session) -> None:
    batch = await a_run_batch(db, 3, 2)
    await retry_batch(db, batch, RetrySelection())
    assert [(each.lines, each.failed) for each in await tenants.running(db, "acme")] == [(0, 0)]
    worker = a_worker()
    first, second = await take(db, worker)
    await complete(db, worker, [first])
    await spans.settle(db, worker.id, [failed(second)])
    assert [(each.lines, each.failed) for each in await tenants.running(db, "acme")] == [(2, 1)]
    await finalize(db, worker, batch)
    (found,) = await usage(db)
    assert (found.batches, found.lines, found.failed, found.input_tokens) == (1, 7, 3, 12)


async def test_a_batch_that_is_deleted_while_it_runs_counts_with_what_it_has_used(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 5, tenant="acme"), a_worker()
    await complete(db, worker, await take(db, worker, 2))
    await deletion.delete(db, objects, await read(db, batch), force=True)
    assert [(each.batches, each.lines, each.input_tokens) for each in await usage(db)] == [(1, 2, 6)]


async def test_deleting_an_ended_batch_changes_no_usage(db: Session, objects: Objects) -> None:
    batch = await a_run_batch(db, 3, 0)
    before = await usage(db)
    await deletion.delete(db, objects, batch, force=False)
    assert [each.lines for each in await usage(db)] == [each.lines for each in before] == [3]


async def test_two_batches_of_a_tenant_that_end_at_once_both_count(database_url: str, db: Session) -> None:
    workers = [a_worker(), a_worker()]
    made = [await a_batch(db, 2, tenant="acme") for _ in workers]
    await run_to_the_end(db, workers[0])
    sessions = [Session(database_url, "a"), Session(database_url, "b")]
    await asyncio.gather(*(finalize(s, w, b) for s, w, b in zip(sessions, workers, made, strict=True)))
    for session in sessions:
        await session.close()
    assert [(each.batches, each.lines) for each in await usage(db)] == [(2, 4)]


async def test_usage_is_reported_by_day_month_and_total_and_by_pages(db: Session) -> None:
    await a_run_batch(db, 1, 0)
    await sql(db, "UPDATE batchline.tenant_usage SET day = '2026-01-30'")
    await a_run_batch(db, 2, 0)
    await sql(db, "UPDATE batchline.tenant_usage SET day = '2026-01-31' WHERE day > '2026-01-30'")
    await a_run_batch(db, 4, 0)
    await sql(db, "UPDATE batchline.tenant_usage SET day = '2026-02-01' WHERE day > '2026-01-31'")
    await a_run_batch(db, 8, 0, tenant="other")

    async def lines(**query: Any) -> list[tuple[str, int]]:
        return [(str(each.period), each.lines) for each in await usage(db, **query)]

    assert await lines(by="day") == [("2026-01-30", 1), ("2026-01-31", 2), ("2026-02-01", 4)]
    assert await lines(by="month", since=date(2026, 1, 1)) == [("2026-01-01", 3), ("2026-02-01", 4)]
    assert await lines(by="month", since=date(2026, 1, 31)) == [("2026-01-31", 2), ("2026-02-01", 4)]
    assert await lines(until=date(2026, 2, 1), since=date(2026, 1, 1)) == [("2026-01-01", 3)]
    first = await usage(db, None, limit=1)
    assert [(each.tenant, each.lines) for each in first] == [("acme", 7)]
    rest = await usage(db, None, after=(date(2000, 1, 1), "acme"))
    assert [(each.tenant, each.lines) for each in rest] == [("other", 8)]


async def test_the_report_has_running_batches_unless_it_is_of_the_past(db: Session) -> None:
    await a_batch(db, 5, tenant="acme")
    anna = Actor("acme", "anna", Role.USER)
    now = await governed.report(db, anna, UsageQuery("acme", today(), today() + timedelta(days=1)))
    assert [each.batches for each in now.running] == [1]
    past = await governed.report(db, anna, UsageQuery("acme", date(2020, 1, 1), date(2020, 2, 1)))
    assert (past.rows, past.running, past.has_more) == ([], [], False)


async def test_only_operators_see_other_tenants_and_change_quotas(db: Session) -> None:
    await add_file(db, 1)
    emil = Actor("acme", "emil", Role.ADMIN)
    for tenant in (None, "other"):
        with pytest.raises(NotAllowed):
            await governed.report(db, emil, UsageQuery(tenant, today(), today()))
        await governed.report(db, OPERATOR, UsageQuery(tenant, today(), today()))
    with pytest.raises(NotAllowed):
        await governed.set_quota(db, emil, "acme", 10)
    with pytest.raises(NotAllowed):
        await governed.begin_erasure(db, emil, "acme")
    with pytest.raises(NotFound):
        await governed.set_quota(db, OPERATOR, "nobody", 10)


async def test_a_quota_is_in_the_audit_log(db: Session) -> None:
    await add_file(db, 1)
    await governed.set_quota(db, OPERATOR, "acme", 10, reason="trial")
    rows = await sql(db, "SELECT tenant, actor, action, subject, detail FROM batchline.audit_log")
    assert rows == [("acme", "olga", "tenant.quota_set", "acme", {"max_bytes": 10, "reason": "trial"})]

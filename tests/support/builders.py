"""Test data that reads like the domain: files, batches and workers in a few words, and what workers do.

    async def test_a_killed_worker(db: Session) -> None:
        worker, batch = a_worker(), await a_batch(db, {"small": 3, "large": 2})
        first, *rest = await take(db, worker, 4)
        await spans.settle(db, worker.id, [completed(first), retry(rest[0], LATER)])
        await kill(db, worker)

Everything goes through the store, except for files, whose lines are written by plain SQL, and for what only
time or misfortune can do: `pass_time`, `kill`, `overrun`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

from batchline.model import (
    DEFAULT_TENANT,
    NO_USAGE,
    Batch,
    Completed,
    Deferred,
    Failed,
    File,
    Item,
    Retried,
    RunSettings,
    Usage,
)
from batchline.model.emission import PYTHON, Emission
from batchline.model.ids import new_id
from batchline.store import batches, files, spans
from batchline.store.batches import NewBatch
from batchline.store.files import FileLane, NewFile
from batchline.store.session import Row, Session
from batchline.store.spans import Scope, WorkerId
from tests.support import databases

T = TypeVar("T")
ANYTHING = Scope()
LATER = 3600.0


def on(url: str, scenario: Callable[[Session], Awaitable[T]]) -> T:
    """Run a scenario on one session with the database."""

    async def run() -> T:
        async with Session(url, "test") as session:
            return await scenario(session)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    # Playwright's loop runs in this thread.
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, run()).result()


async def sql(db: Session, query: str, **params: object) -> list[Row]:
    """Any SQL: what a test asks the database behind the store's back, and how it does damage."""
    async with db.open_ended() as connection:
        text = query.replace("batchline.", f"{db.schema}.")
        cursor = await connection.execute(text.encode(), params)
        return await cursor.fetchall() if cursor.description else []


@contextmanager
def a_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """A database for as long as it is needed: empty, or made from a template."""
    name = f"made_{os.getpid()}_{new_id().hex[-12:]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        databases.create(connection, name, template or "template0")
        try:
            yield make_conninfo(server_url, dbname=name)
        finally:
            databases.drop(connection, name)


async def wipe(db: Session) -> None:
    """Empty all tables; quicker than another database."""
    await sql(
        db,
        """
        TRUNCATE batchline.files, batchline.file_lanes, batchline.lines, batchline.line_hashes,
            batchline.batches, batchline.lanes, batchline.cursors, batchline.counters, batchline.spans,
            batchline.results, batchline.retry_attempts, batchline.workers, batchline.worker_reports,
            batchline.deleted_lanes,
            batchline.outbox, batchline.webhooks, batchline.deliveries, batchline.hooks,
            batchline.hook_deliveries, batchline.operation_batches, batchline.failure_causes,
            batchline.cause_counts, batchline.failure_pauses, batchline.budget_holds,
            batchline.lost_submissions, batchline.tenant_usage, batchline.usage_counted,
            batchline.deleted_batches, batchline.progress, batchline.duplicates,
            batchline.rate_budgets, batchline.rate_budget_states
        RESTART IDENTITY
        """,
    )


# Files and batches


async def a_file(db: Session, lanes: Mapping[str, int], *, tenant: str = DEFAULT_TENANT) -> UUID:
    """An input file with so many lines for each model. Models take turns: a b a b b …

    Line numbers count from 1; line 7 has the custom id `line-7` and the body `{"line": 7}`.
    """
    file_id = new_id()
    await sql(
        db,
        """
        WITH file AS (
            INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
            VALUES (%(file)s, %(tenant)s, 'batch', 'input.jsonl', 0, %(lines)s)
            RETURNING no
        ),
        lane AS (
            INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
            SELECT no, nth - 1, model, '/v1/chat/completions', total
            FROM file
            CROSS JOIN unnest(%(models)s::text[], %(totals)s::integer[])
                WITH ORDINALITY AS m (model, total, nth)
            RETURNING *
        ),
        line AS (
            SELECT file_no, lane_no, ordinal, row_number() OVER (ORDER BY ordinal, lane_no) AS line_no
            FROM lane
            CROSS JOIN LATERAL generate_series(0, total - 1) AS ordinal
        )
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT file_no, lane_no, ordinal, line_no, 'line-' || line_no, format('{"line": %%s}', line_no)
        FROM line
        """,
        file=file_id,
        tenant=tenant,
        lines=sum(lanes.values()),
        models=list(lanes),
        totals=list(lanes.values()),
    )
    return file_id


async def a_batch(
    db: Session,
    lanes: Mapping[str, int] | int = 3,
    *,
    file_id: UUID | None = None,
    tenant: str = DEFAULT_TENANT,
    upstream: str | None = None,
    window: float | None = LATER,
    reserved: bool = False,
) -> Batch:
    """A batch over a new file with these lanes (a number: so many lines for one model), or over `file_id`."""
    if file_id is None:
        file_id = await a_file(db, {"model": lanes} if isinstance(lanes, int) else lanes, tenant=tenant)
    settings = RunSettings(upstream=upstream, reserved=reserved)
    return await batches.create(db, NewBatch(new_id(), tenant, file_id, "24h", window, settings))


async def a_pipeline(
    db: Session,
    *stages: str,
    items: int = 3,
    tenant: str = DEFAULT_TENANT,
    accepting: bool = False,
    held: bool = False,
    window: float | None = LATER,
    settings: RunSettings | None = None,
) -> Batch:
    """A batch of Python operations with so many items for the first stage; the other stages are fed. One that
    accepts items begins with none."""
    items = 0 if accepting else items
    lanes = [FileLane(stage, PYTHON + stage, 0 if nth else items) for nth, stage in enumerate(stages)]
    bodies = [b'{"line": %d}' % (n + 1) for n in range(items)]
    async with files.incoming(db) as incoming:
        async with incoming.lines() as lines:
            numbers = range(items)
            ids = [b"line-%d" % (n + 1) for n in numbers]
            await lines.write([0] * items, numbers, range(1, items + 1), ids, bodies)
        size = sum(map(len, bodies))
        file = await incoming.add(NewFile(new_id(), tenant, "batch", "items.jsonl", size, b"", lanes))
    new = NewBatch(
        *(new_id(), tenant, file.id, "24h", window, settings or RunSettings()),
        accepting=accepting,
        held=held,
    )
    return await batches.create(db, new)


async def read(db: Session, batch: Batch | UUID) -> Batch:
    """The batch as it stands now."""
    found = await batches.get(db, batch if isinstance(batch, UUID) else batch.id)
    assert found is not None, f"there is no batch {batch}"
    return found


# Workers


def a_worker(name: str = "worker", *, lease: float = LATER) -> WorkerId:
    return WorkerId(new_id(), name, timedelta(seconds=lease))


async def take(db: Session, worker: WorkerId, limit: int = 1000, scope: Scope = ANYTHING) -> list[Item]:
    """Claim and fetch."""
    return await spans.fetch(db, worker.id, await spans.claim(db, worker, scope, limit))


def completed(item: Item, *, input_tokens: int = 3, output_tokens: int = 5) -> Completed:
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    return Completed(item, 200, b'{"answer": %d}' % item.line_no, usage)


def emission(stage: str, key: str, body: bytes | None = None) -> Emission:
    return Emission(PYTHON + stage, key.encode(), b'{"key": "%b"}' % key.encode() if body is None else body)


def emitting(item: Item, stage: str, *keys: str) -> Completed:
    """The item completes, and adds an item with each of these keys to a stage."""
    emitted = tuple(emission(stage, key) for key in keys)
    return Completed(item, 200, b'{"answer": %d}' % item.line_no, NO_USAGE, emitted)


def empty(item: Item) -> Completed:
    return Completed(item, 200, b"{}", NO_USAGE)


def failed(item: Item) -> Failed:
    return Failed(item, b'{"error": %d}' % item.line_no, 400)


def retry(item: Item, delay: float = 0.0) -> Retried:
    return Retried(item, "rate_limit", "slow down", delay)


def deferred(item: Item, delay: float = 0.0) -> Deferred:
    return Deferred(item, delay)


async def complete(db: Session, worker: WorkerId, items: Iterable[Item]) -> None:
    await spans.settle(db, worker.id, [completed(item) for item in items])


async def park(
    db: Session,
    worker: WorkerId,
    items: Sequence[Item],
    task_id: str,
    *,
    upstream: str = "provider",
    delay: float = 0.0,
) -> int:
    """Park items of one span as one task."""
    (claim,) = {item.claim.span_id: item.claim for item in items}.values()
    task = spans.ParkedTask(claim, tuple(item.ordinal for item in items), upstream, task_id, delay)
    return sum(size for _, size, *_ in await spans.park(db, worker.id, [task]))


async def run_to_the_end(db: Session, worker: WorkerId, scope: Scope = ANYTHING) -> None:
    """Complete everything that can be claimed, until there is nothing."""
    while items := await take(db, worker, scope=scope):
        await complete(db, worker, items)


async def finish(db: Session, worker: WorkerId, batch_id: UUID) -> Batch | None:
    """End a batch that `worker` has taken for finalizing, with the files that its counters call for."""
    batch = await read(db, batch_id)
    if batch.finalizing_at is None:
        return None
    return await batches.finish(
        db,
        worker.id,
        batch_id,
        output=_made(batch, "output", batch.completed),
        errors=_made(batch, "error", batch.total - batch.completed),
        summary={},
        event_id=new_id(),
        finalizing_at=batch.finalizing_at,
    )


async def finalize(db: Session, worker: WorkerId, batch: Batch) -> Batch:
    """Take a batch for finalizing, and end it."""
    taken = await batches.claim_finalizing(db, worker, batch.id)
    assert taken is not None, f"batch {batch.id} is not there to be finalized"
    ended = await finish(db, worker, batch.id)
    assert ended is not None, f"{worker.name} has lost batch {batch.id} to another finalizer"
    return ended


def _made(batch: Batch, kind: str, lines: int) -> File | None:
    if lines == 0:
        return None
    name = f"{batch.id.hex}_{kind}.jsonl"
    return File(new_id(), batch.tenant, "batch_output", name, 0, lines, name, datetime.now(UTC), None)


# Time and misfortune


async def kill(db: Session, *workers: WorkerId) -> None:
    """The lease of these workers is over."""
    await sql(
        db,
        "UPDATE batchline.workers SET lease_until = now() - interval '1 second' WHERE id = ANY (%(ids)s)",
        ids=[worker.id for worker in workers],
    )


async def pass_time(db: Session) -> None:
    """Every free span has come due, except those that are held back for a later step."""
    await sql(
        db,
        "UPDATE batchline.spans SET available_at = now() WHERE worker_id IS NULL AND available_at > now()"
        " AND available_at < '9999-12-31'",
    )


async def end_finalize_backoff(db: Session) -> None:
    """Every finalization that failed may be tried again."""
    await sql(db, "UPDATE batchline.batches SET finalize_after = now() WHERE finalize_after > now()")


async def overrun(db: Session, batch_id: UUID) -> None:
    """The batch is past its deadline."""
    await sql(
        db,
        """
        WITH batch AS (
            UPDATE batchline.batches SET expires_at = now() - interval '1 second' WHERE id = %(batch)s
                RETURNING *
        )
        UPDATE batchline.lanes SET deadline = batch.expires_at FROM batch WHERE batch_id = batch.id
        """,
        batch=batch_id,
    )


async def held(db: Session) -> list[Row]:
    """Who holds how many items, span by span; None: nobody."""
    return await sql(
        db, "SELECT worker_id, batchline.span_size(outstanding) FROM batchline.spans ORDER BY id"
    )


# Facts that come by and by


async def until(fact: Callable[[], Awaitable[object]]) -> None:
    while not await fact():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def equals(found: Awaitable[object], expected: object) -> bool:
    return await found == expected

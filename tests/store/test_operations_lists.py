"""Lists of governed batches and of children, by status and page by page; and when a batch last changed."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from batchline.governance import access, changes
from batchline.governance.access import Actor
from batchline.model import Approval, Child, ChildStatus, GovernedBatch, ParentStatus
from batchline.store import batches, operations, spans
from batchline.store.session import Session
from batchline.store.statements import statement
from tests.support.builders import LATER, a_worker, completed, failed, park, retry, sql, take
from tests.support.governance import (
    ANNA,
    BERT,
    CARLA,
    EMIL,
    append,
    approve_seen,
    end_all,
    is_sound,
    now,
    production,
    some_rules,
    submit,
    work,
)

CHILDREN = 20_000
# Blocks that a page may read: each child by a few index probes, and nothing of the others.
FEW_BLOCKS = 50
BLOCKS_PER_CHILD = 30


async def every_status(db: Session, *users: Actor) -> None:
    """Batches of each status: those that succeeded or failed both frozen and ended, and open ones last."""
    rules = some_rules()
    retried = []
    for user in users:
        for failures in ((), {1, 2}, {1}):
            for end in (True, False):
                batch = await submit(db, rules, user, 2)
                await work(db, failures=failures, end=end)
        cancelled = await submit(db, rules, user, 2)
        await changes.cancel(db, user, cancelled.id)
        await end_all(db)
        retried.append((user, batch))
        undecided = await submit(db, rules, user, production())
        await changes.cancel(db, user, undecided.id)
    for user, batch in retried:
        await changes.retry(rules, db, user, batch.id)
        await submit(db, rules, user, production())
        await submit(db, rules, user, 2)


async def pages(db: Session, actor: Actor, size: int, **filters: Any) -> list[GovernedBatch]:
    """All pages of a list, one after the other."""
    found: list[GovernedBatch] = []
    while True:
        last = found[-1].id if found else None
        page = await access.page(db, actor, limit=size, after=last, **filters)
        if not page:
            return found
        found += page


@pytest.mark.parametrize("reader", [ANNA, EMIL], ids=["a user", "an admin"])
async def test_a_list_by_status_is_the_list_without_the_others(db: Session, reader: Actor) -> None:
    await every_status(db, ANNA, BERT)
    everything = await pages(db, reader, 100)
    assert {batch.status for batch in everything} == set(ParentStatus)
    for status in ParentStatus:
        matching = [batch for batch in everything if batch.status is status]
        for size in (1, 3, 100):
            assert await pages(db, reader, size, status=status) == matching, (status, size)


async def test_a_list_by_status_takes_the_other_filters_as_well(db: Session) -> None:
    await every_status(db, ANNA)
    everything = await pages(db, ANNA, 100)
    for approval in Approval:
        for status in ParentStatus:
            found = await pages(db, ANNA, 2, status=status, approval=approval)
            # A batch that was cancelled before a decision no longer waits for one.
            matching = [
                batch
                for batch in everything
                if batch.status is status
                and batch.approval is approval
                and (approval is not Approval.PENDING or status is ParentStatus.PENDING_APPROVAL)
            ]
            assert found == matching, (status, approval)
    assert await pages(db, ANNA, 2, status=ParentStatus.FAILED, operation="wipe") == []


async def children_by_page(
    db: Session, batch: GovernedBatch, size: int, status: ChildStatus | None
) -> list[Child]:
    found: list[Child] = []
    while True:
        last = found[-1].sequence_no if found else 0
        page = await operations.children(db, batch.id, status=status, after=last, limit=size)
        if not page:
            return found
        found += page


async def check_filters(db: Session, batch: GovernedBatch, expected: Sequence[str]) -> None:
    """`expected`: the first letter of each child's status."""
    everything = await operations.children(db, batch.id)
    assert [child.status[0] for child in everything] == list(expected)
    assert [child.sequence_no for child in everything] == list(range(1, len(everything) + 1))
    for status in ChildStatus:
        matching = [child for child in everything if child.status is status]
        for size in (1, 2, 100):
            assert await children_by_page(db, batch, size, status) == matching, (status, size)


async def test_children_by_status_are_the_children_without_the_others(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 12)
    await check_filters(db, batch, "PPPPPPPPPPPP")
    worker = a_worker()
    items = await take(db, worker, 8)
    await check_filters(db, batch, "RRRRRRRRPPPP")
    await spans.settle(
        db,
        worker.id,
        [completed(items[0]), failed(items[1]), completed(items[4]), retry(items[5]), retry(items[6], LATER)],
    )
    await park(db, worker, [items[7]], "task", delay=LATER)
    await check_filters(db, batch, "SFRRSPPRPPPP")

    # A child that never ran is pending until the batch is frozen, as in the batch's counts.
    await changes.cancel(db, ANNA, batch.id)
    await check_filters(db, batch, "SFRRSPPRPPPP")
    await spans.release(db, worker.id)
    assert await batches.conclude(db, batch.id)
    await check_filters(db, batch, "SFCCSCCCCCCC")


async def test_children_put_back_by_a_retry_are_pending_again(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 4)
    await work(db, failures={2, 3})
    await check_filters(db, batch, "SFFS")
    await changes.retry(rules, db, ANNA, batch.id)
    await check_filters(db, batch, "SPPS")


async def a_large_batch(db: Session) -> UUID:
    """Nearly all children have succeeded; a few others are far behind the first."""
    batch = await submit(db, some_rules(), ANNA, 1)
    for command in (
        "DELETE FROM batchline.lines",
        """
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT file_no, lane_no, n, n + 1, n::text, '{}'
        FROM batchline.lanes, generate_series(0, %(last)s) AS n
        """,
        """
        INSERT INTO batchline.results
            (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output)
        SELECT
            id, n + 1, n, (CASE WHEN n = %(last)s - 10 THEN 'failed' ELSE 'completed' END)::batchline.outcome,
            200, 1, 0, 0, '{}'
        FROM batchline.lanes, generate_series(0, %(last)s - 10) AS n
        """,
        "UPDATE batchline.lanes SET next = %(last)s - 4, total = %(last)s + 1",
        """
        INSERT INTO batchline.workers (id, name, lease_until)
        SELECT batch_id, 'holder', now() + interval '1 hour' FROM batchline.lanes
        """,
        """
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id)
        SELECT id, batch_id, int4multirange(int4range(%(last)s - 9, %(last)s - 4)), batch_id
        FROM batchline.lanes
        """,
        """
        INSERT INTO batchline.counters
            (batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
        SELECT batch_id, %(last)s - 10, 1, 0, 0, 0, 0 FROM batchline.lanes
        """,
        "UPDATE batchline.batches SET total = %(last)s + 1",
        "UPDATE batchline.file_lanes SET total = %(last)s + 1",
        "UPDATE batchline.files SET line_count = %(last)s + 1",
        "ANALYZE",
    ):
        await sql(db, command, last=CHILDREN - 1)
    await is_sound(db)
    return batch.id


async def blocks_read(db: Session, name: str, **params: Any) -> tuple[int, int]:
    """Rows returned and blocks read by a statement, planned as a session plans: once, for any parameters."""
    text, names = statement(name).numbered_in("batchline")
    values = ", ".join("NULL" if params[each] is None else f"'{params[each]}'" for each in names)
    await sql(db, f"PREPARE examined AS {text}")
    try:
        ((plan,),) = await sql(
            db, f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE examined ({values})"
        )
    finally:
        await sql(db, "DEALLOCATE examined")
    root = plan[0]["Plan"]
    return round(root["Actual Rows"]), root["Shared Hit Blocks"] + root["Shared Read Blocks"]


@pytest.mark.parametrize(
    ("status", "after", "expected"),
    [
        (None, 0, 20),
        (None, CHILDREN - 30, 20),
        ("SUCCEEDED", 0, 20),
        ("SUCCEEDED", CHILDREN - 100, 20),
        ("FAILED", 0, 1),
        ("RUNNING", 0, 5),
        ("PENDING", 0, 5),
        ("CANCELLED", CHILDREN - 30, 10),
    ],
)
async def test_a_page_of_children_reads_nothing_of_the_others(
    db: Session, status: str | None, after: int, expected: int
) -> None:
    batch = await a_large_batch(db)
    if status == "CANCELLED":
        await changes.cancel(db, ANNA, batch)
        await sql(db, "UPDATE batchline.spans SET worker_id = NULL")
        assert await batches.conclude(db, batch)
    rows, read = await blocks_read(
        db, "operation_children", batch=batch, status=status, after=after, limit=20
    )
    assert rows == expected
    assert read < FEW_BLOCKS + rows * BLOCKS_PER_CHILD


# updated_at

# What a settle appends.
COUNT = b"""
INSERT INTO batchline.counters
    (batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
VALUES (%(batch)s, 1, 0, 0, 0, 0, 0)
"""
FREEZE = b"SELECT batchline.freeze_v1(%(batch)s)"


async def test_every_change_moves_updated_at(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 3, hold=True)
    assert batch.updated_at == batch.created_at
    worker = a_worker()
    last = batch.updated_at

    async def moved(act: str) -> None:
        nonlocal last
        then = (await now(db, batch)).updated_at
        assert then > last, act
        last = then

    await append(rules, db, ANNA, batch.id, production(), ["more"])
    await moved("append")
    await changes.release(db, ANNA, batch.id)
    await moved("release")
    await approve_seen(rules, db, CARLA, batch.id)
    await moved("approve")
    await changes.pause(db, ANNA, batch.id)
    await moved("pause")
    await changes.resume(db, ANNA, batch.id)
    await moved("resume")
    items = await take(db, worker, 4)
    await spans.settle(db, worker.id, [completed(items[0])])
    await moved("settle")
    await spans.settle(db, worker.id, [failed(item) for item in items[1:]])
    await moved("freeze")
    await end_all(db)
    await moved("end")
    await changes.retry(rules, db, ANNA, batch.id)
    await moved("retry")
    await changes.cancel(db, ANNA, batch.id)
    await moved("cancel")
    await sql(db, "UPDATE batchline.batches SET purging_at = now()")
    await moved("purge")


async def test_nothing_but_changes_moves_updated_at(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    worker = a_worker()
    (item, _) = await take(db, worker)
    await spans.settle(db, worker.id, [retry(item)])
    assert (await now(db, batch)).updated_at == batch.updated_at
    await changes.cancel(db, ANNA, batch.id)
    cancelled = (await now(db, batch)).updated_at
    await changes.cancel(db, ANNA, batch.id)
    assert (await now(db, batch)).updated_at == cancelled


@pytest.mark.parametrize("change", [COUNT, FREEZE], ids=["settle", "freeze"])
async def test_updated_at_never_goes_back_when_an_older_transaction_commits_later(
    db: Session, database_url: str, change: bytes
) -> None:
    batch = await submit(db, some_rules(), ANNA, 2)
    worker = a_worker()
    items = await take(db, worker)
    async with Session(database_url, "older") as older:
        async with older.transaction() as connection:
            await connection.execute(b"SELECT now()")
            await spans.settle(db, worker.id, [completed(items[0])])
            settled = (await now(db, batch)).updated_at
            await connection.execute(change, {"batch": batch.id})
        assert (await now(db, batch)).updated_at > settled


async def test_last_attempt_at_is_the_start_of_a_running_attempt_and_else_the_end_of_the_last_one(
    db: Session,
) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 3)
    worker = a_worker()
    assert [child.last_attempt_at for child in await operations.children(db, batch.id)] == [None] * 3
    items = await take(db, worker)
    ((claimed_at,),) = await sql(db, "SELECT claimed_at FROM batchline.spans")
    assert [child.last_attempt_at for child in await operations.children(db, batch.id)] == [claimed_at] * 3
    await spans.settle(db, worker.id, [completed(items[0]), retry(items[1])])
    done, retried, running = await operations.children(db, batch.id)
    assert done.last_attempt_at == done.finished_at is not None
    assert (retried.status, retried.finished_at) == (ChildStatus.PENDING, None)
    assert retried.last_attempt_at is not None
    assert running.last_attempt_at == claimed_at < retried.last_attempt_at
    first = retried.last_attempt_at
    (again,) = await take(db, worker)
    second = (await operations.children(db, batch.id))[1].last_attempt_at
    assert second is not None
    assert second > first
    await spans.settle(db, worker.id, [failed(again), completed(items[2])])
    await end_all(db)
    ended = (await operations.children(db, batch.id))[1]
    assert ended.last_attempt_at == ended.finished_at
    assert ended.finished_at is not None
    assert ended.finished_at > second
    await changes.retry(rules, db, ANNA, batch.id)
    assert (await operations.children(db, batch.id))[1].last_attempt_at == ended.finished_at

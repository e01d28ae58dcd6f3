"""Counts of items by state add up to the total at every moment, whoever is at work."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchline.model import Batch, Item, ItemCounts, Verdict
from batchline.store import batches, spans
from batchline.store.session import Session
from batchline.store.statements import statement
from tests.support import scenes
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    completed,
    deferred,
    failed,
    finalize,
    park,
    pass_time,
    read,
    retry,
    run_to_the_end,
    take,
)
from tests.support.scenes import Stage
from tests.support.waiting import eventually

PATIENCE = 150.0
JUDGES: tuple[Callable[[Item], Verdict], ...] = (
    completed,
    failed,
    retry,
    lambda item: deferred(item, LATER),
)


def states(counts: ItemCounts) -> dict[str, int]:
    """All states that occur."""
    return {
        name: items for name, items in msgspec.structs.asdict(counts).items() if items and name != "total"
    }


async def in_every_state(db: Session) -> Batch:
    """Ten lines: one completed, one failed, two that wait for another try, one parked, two claimed."""
    batch, worker = await a_batch(db, 10), a_worker()
    items = await take(db, worker, 7)
    verdicts: list[Verdict] = [
        completed(items[0]),
        failed(items[1]),
        retry(items[2], LATER),
        deferred(items[3], LATER),
    ]
    await spans.settle(db, worker.id, verdicts)
    await park(db, worker, [items[4]], "task")
    return batch


async def test_a_running_batch_counts_every_state(db: Session) -> None:
    counts = (await read(db, await in_every_state(db))).counts
    assert counts == ItemCounts(
        total=10, completed=1, failed=1, pending=3, in_progress=3, retrying=2, cancelled=0, expired=0
    )


async def test_a_retry_that_is_due_is_pending(db: Session) -> None:
    batch = await in_every_state(db)
    await pass_time(db)
    assert states((await read(db, batch)).counts) == {
        "completed": 1,
        "failed": 1,
        "pending": 5,
        "in_progress": 3,
    }


@pytest.mark.parametrize(("reason", "state"), [("cancel", "cancelled"), ("expire", "expired")])
async def test_a_closing_batch_counts_items_that_were_never_claimed_as_never_run(
    db: Session, reason: Any, state: str
) -> None:
    batch = await in_every_state(db)
    await batches.close(db, batch.id, reason)
    now = await read(db, batch)
    assert states(now.counts) == {"completed": 1, "failed": 1, "in_progress": 3, "retrying": 2, state: 3}
    assert now.finalizing_at is None, "a worker still holds two items"


async def test_an_ended_batch_counts_what_never_ran(db: Session) -> None:
    batch, worker = await a_batch(db, 5), a_worker()
    items = await take(db, worker, 2)
    await spans.settle(db, worker.id, [completed(items[0]), failed(items[1])])
    await batches.close(db, batch.id, "cancel")
    ended = await finalize(db, worker, await read(db, batch))
    assert states(ended.counts) == {"completed": 1, "failed": 1, "cancelled": 3}
    assert (await read(db, batch)).counts == ended.counts


async def test_new_and_completed_batches_count_one_state(db: Session) -> None:
    batch, worker = await a_batch(db, 5), a_worker()
    assert states(batch.counts) == states((await read(db, batch)).counts) == {"pending": 5}
    await run_to_the_end(db, worker)
    ended = await finalize(db, worker, await read(db, batch))
    assert states(ended.counts) == {"completed": 5}


async def test_lists_count_as_single_batches_do(db: Session) -> None:
    first, second = await in_every_state(db), await a_batch(db, 4)
    listed = await batches.list_newest(db, first.tenant, limit=10)
    assert [batch.counts for batch in listed] == [
        (await read(db, second)).counts,
        (await read(db, first)).counts,
    ]


async def test_counts_add_up_in_every_read_while_workers_claim_settle_and_cancel(
    db: Session, database_url: str
) -> None:
    """Each read is one snapshot. Reading counters and spans one after the other would count items twice."""
    total, done = 3000, asyncio.Event()
    batch = await a_batch(db, {"a": total // 3, "b": total // 3, "c": total // 3})
    seen = list[ItemCounts]()

    async def read_on() -> None:
        async with Session(database_url, "reader") as session:
            while not done.is_set():
                seen.append((await read(session, batch)).counts)

    async def more_reads() -> None:
        """Three: two are under way at most, so the last of them begins after now."""
        known = len(seen)
        await eventually("reads of a half-run batch", lambda: len(seen) > known + 2)

    async def work(nth: int) -> None:
        worker = a_worker(f"worker {nth}")
        async with Session(database_url, worker.name) as session:
            while items := await take(session, worker, 40):
                verdicts = [JUDGES[n % 4 if n % 10 > 6 else 0](item) for n, item in enumerate(items)]
                await spans.settle(session, worker.id, verdicts[: 30 + nth])
                if (await read(session, batch)).completed > total // 2:
                    await more_reads()
                    await batches.close(session, batch.id, "cancel")
            await spans.release(session, worker.id)
            await batches.conclude(session, batch.id)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        readers = [group.create_task(read_on()) for _ in range(2)]
        await asyncio.gather(*(work(nth) for nth in range(3)))
        await eventually("a read after the cancel", lambda: seen[-1].cancelled)
        done.set()
        await asyncio.gather(*readers)

    for counts in seen:
        values = msgspec.structs.asdict(counts)
        assert min(values.values()) >= 0, counts
        assert sum(values.values()) - counts.total == counts.total == total, counts
    assert any(counts.cancelled for counts in seen), "some reads came during the cancel or after it"
    assert any(counts.in_progress for counts in seen)
    assert any(counts.retrying for counts in seen)


def test_a_read_between_a_settle_and_its_commit_counts_as_before(
    server_url: str, template: str, tmp_path: Path
) -> None:
    """Of what is open in another transaction nothing is counted, and all of it afterwards."""
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        batch, anna, bert, reader = stage.batch(10), stage.hand(), stage.hand(), stage.hand()

        def counts() -> tuple[Any, ...]:
            """Completed, in progress, retrying, returned; whether it is being cancelled."""
            query = statement("get_batch").text.replace(
                "SELECT b.*, u.claimed, u.retrying, u.returned",
                "SELECT b.completed, greatest(u.claimed, b.completed) - b.completed - u.retrying"
                " - u.returned, u.retrying, u.returned, b.cancelling_at IS NOT NULL",
            )
            (row,) = reader.connection.execute(query.encode(), {"batch": batch.id}).fetchall()
            return row

        items, others = anna.take(4), bert.take(3)
        assert counts() == (0, 7, 0, 0, False)
        with anna.holding():
            anna.settle([scenes.completed(items[0]), scenes.retry(items[1], 3600)])
            assert counts() == (0, 7, 0, 0, False)
        assert counts() == (1, 5, 1, 0, False)
        with anna.holding():
            anna.close(batch.id, "cancel")
            assert counts() == (1, 5, 1, 0, False)
        assert counts() == (1, 5, 1, 0, True)
        with bert.holding():
            bert.settle([scenes.completed(item) for item in others])
            assert counts() == (1, 5, 1, 0, True)
        assert counts() == (4, 2, 1, 0, True)
        with anna.holding():
            anna.release()
            assert counts() == (4, 2, 1, 0, True)
        assert counts() == (4, 0, 1, 2, True)
        with bert.holding():
            bert.conclude(batch.id)
            assert counts() == (4, 0, 1, 2, True)
        assert counts() == (4, 0, 0, 0, True)

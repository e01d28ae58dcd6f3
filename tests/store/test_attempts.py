"""The history of an item: where it stands, and every attempt that failed."""

from datetime import timedelta

from batchline.store import attempts, batches, spans
from batchline.store.session import Session
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    complete,
    failed,
    kill,
    pass_time,
    retry,
    sql,
    take,
)


async def test_an_item_is_shown_with_its_failed_attempts(db: Session) -> None:
    batch, worker = await a_batch(db, {"a": 3, "b": 3}), a_worker()
    for delay in (0.0, LATER):
        items = [item for item in await take(db, worker) if item.line_no == 3]
        await spans.settle(db, worker.id, [retry(items[0], delay)])
    item = await attempts.of_item(db, batch.id, "line-3")
    assert item is not None
    assert (item.custom_id, item.line_no, item.model, item.state, item.attempt) == (
        *("line-3", 3, "a", "retrying", 3),
    )
    assert [(each.attempt, each.error_code, each.message) for each in item.attempts] == [
        (1, "rate_limit", "slow down"),
        (2, "rate_limit", "slow down"),
    ]
    waits = [each.not_before - each.created_at for each in item.attempts]
    assert waits == [timedelta(0), timedelta(seconds=LATER)]
    assert item.not_before == item.attempts[1].not_before
    assert item.claimed_at is None, "nobody holds it now"


async def test_an_item_that_never_failed_has_no_attempts(db: Session) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    item = await attempts.of_item(db, batch.id, "line-2")
    assert item is not None
    assert (item.state, item.attempts, item.claimed_at) == ("pending", (), None)
    items = await take(db, worker)
    await complete(db, worker, items[1:])
    item = await attempts.of_item(db, batch.id, "line-2")
    assert item is not None
    assert (item.state, item.status_code, item.attempts) == ("completed", 200, ())
    assert item.finished_at is not None


async def test_unknown_items_and_those_whose_results_are_deleted_are_not_found(db: Session) -> None:
    batch, other = await a_batch(db, 2), await a_batch(db, 3)
    for custom_id in ("line-3", "", "line-1\0", "line-\ud800", "%"):
        assert await attempts.of_item(db, batch.id, custom_id) is None
    assert await attempts.of_item(db, other.id, "line-3") is not None
    await sql(db, "UPDATE batchline.batches SET purging_at = now()")
    assert await attempts.of_item(db, other.id, "line-3") is None


async def test_claimed_at_is_when_the_current_holder_claimed_it(db: Session) -> None:
    first, second, batch = a_worker(), a_worker(), await a_batch(db, 4)
    marks = [(await sql(db, "SELECT clock_timestamp()"))[0][0]]

    async def claimed() -> list[bool]:
        """Of each item: whether it was claimed since the last time."""
        rows = await sql(db, "SELECT claimed_at FROM batchline.requests ORDER BY line_no")
        marks.append((await sql(db, "SELECT clock_timestamp()"))[0][0])
        return [at is not None and at >= marks[-2] for (at,) in rows]

    items = await take(db, first, 3)
    assert await claimed() == [True, True, True, False]
    assert await claimed() == [False] * 4, "it was claimed before"
    await spans.settle(db, first.id, [failed(items[0]), retry(items[1])])
    await take(db, second, 1)
    assert await claimed() == [False, True, False, False]
    await kill(db, first)
    await pass_time(db)
    await take(db, second, 1)
    assert await claimed() == [False, False, True, False], "taken over from a worker that is gone"
    await spans.release(db, second.id)
    ((held,),) = await sql(db, "SELECT count(claimed_at) FROM batchline.requests")
    assert held == 0
    await batches.close(db, batch.id, "cancel")


async def test_a_span_that_is_split_is_claimed_by_its_new_holder(db: Session) -> None:
    first, second, batch = a_worker(), a_worker(), await a_batch(db, 5)
    await take(db, first, 5)
    await spans.release(db, first.id)
    await take(db, second, 2)
    rows = await sql(db, "SELECT worker_id, claimed_at IS NOT NULL FROM batchline.requests ORDER BY line_no")
    assert rows == [(second.id, True)] * 2 + [(None, False)] * 3
    assert batch.total == 5

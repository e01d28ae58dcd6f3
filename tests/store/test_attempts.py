"""The history of an item: where it stands, and every attempt that failed."""

from datetime import timedelta

import msgspec

from batchline.batches.output import answered_line
from batchline.batches.retry import retry as retry_lines
from batchline.model import Failed, RetrySelection, phases
from batchline.store import attempts, batches, spans
from batchline.store.session import Session
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    complete,
    failed,
    finalize,
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


async def test_an_attempt_that_a_retry_has_put_back_is_shown_with_its_message_alone(db: Session) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    for message in ("bad key", "x" * 1000):
        (item,) = await take(db, worker)
        body = msgspec.json.encode({"error": {"message": message}})
        await spans.settle(db, worker.id, [Failed(item, answered_line(item, 401, "req", body), 401)])
        await retry_lines(db, await finalize(db, worker, batch), RetrySelection())
    (item,) = await take(db, worker)
    body = msgspec.json.encode({"error": {"message": "y" * 1000}})
    await spans.settle(db, worker.id, [Failed(item, answered_line(item, 401, "req", body), 401)])
    found = await attempts.of_item(db, batch.id, "line-1")
    assert found is not None
    assert [(each.error_code, each.message) for each in found.attempts] == [
        ("http_401", "bad key"),
        ("http_401", "x" * 500),
    ]
    assert found.message == "y" * 500


async def test_the_time_until_a_retry_by_hand_is_no_back_off(db: Session) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [failed(item)])
    ended = await finalize(db, worker, batch)
    await sql(db, "UPDATE batchline.results SET finished_at = finished_at - interval '1 hour'")
    await sql(db, "UPDATE batchline.batches SET in_progress_at = in_progress_at - interval '2 hours'")
    await retry_lines(db, ended, RetrySelection())
    found = await attempts.of_item(db, batch.id, "line-1")
    assert found is not None
    _, last = phases(found)
    assert last.backoff == 0
    assert last.waiting >= 3_600_000

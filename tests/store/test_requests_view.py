"""The view `requests` shows every item of every batch in its state (docs/reference/states.md), row by row."""

from uuid import UUID

import pytest

from batchline.model import Batch, Item
from batchline.store import batches, spans
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from tests.support.builders import (
    LATER,
    a_batch,
    a_file,
    a_worker,
    complete,
    completed,
    deferred,
    failed,
    finalize,
    kill,
    park,
    pass_time,
    retry,
    run_to_the_end,
    sql,
    take,
)


async def states(db: Session, batch: Batch) -> list[str]:
    """The state of each line of the batch, in input order."""
    rows = await sql(
        db, "SELECT state FROM batchline.requests WHERE batch_id = %(batch)s ORDER BY line_no", batch=batch.id
    )
    return [state for (state,) in rows]


async def one_in_every_state(db: Session, worker: WorkerId) -> tuple[Batch, list[Item]]:
    """A batch of seven lines: completed, failed, retrying, put off, parked, claimed, pending."""
    batch = await a_batch(db, 7)
    items = await take(db, worker, 6)
    await spans.settle(
        db,
        worker.id,
        [completed(items[0]), failed(items[1]), retry(items[2], LATER), deferred(items[3], LATER)],
    )
    await park(db, worker, [items[4]], "task")
    return batch, items


RUNNING = ["completed", "failed", "retrying", "retrying", "processing", "claimed", "pending"]


async def test_a_running_batch_has_items_in_every_state(db: Session) -> None:
    worker = a_worker()
    batch, _ = await one_in_every_state(db, worker)
    assert await states(db, batch) == RUNNING
    await batches.close(db, batch.id, "pause")
    assert await states(db, batch) == RUNNING, "a pause changes no item"
    await batches.resume(db, batch.id)
    assert await states(db, batch) == RUNNING


async def test_a_row_has_the_state_of_its_item(db: Session) -> None:
    worker = a_worker()
    batch, items = await one_in_every_state(db, worker)
    rows = await sql(
        db,
        """
            SELECT
                ordinal, line_no, custom_id, model, attempt, worker_id, task_id, not_before > now(),
                status_code, finished_at IS NOT NULL
            FROM batchline.requests
            WHERE batch_id = %(batch)s AND lane_id = %(lane)s
            ORDER BY line_no
            """,
        batch=batch.id,
        lane=items[0].claim.lane_id,
    )
    nobody: UUID | None = None
    assert rows == [
        (0, 1, "line-1", "model", 1, nobody, None, None, 200, True),
        (1, 2, "line-2", "model", 1, nobody, None, None, 400, True),
        (2, 3, "line-3", "model", 2, nobody, None, True, None, False),
        (3, 4, "line-4", "model", 1, nobody, None, True, None, False),
        (4, 5, "line-5", "model", 1, nobody, "task", False, None, False),
        (5, 6, "line-6", "model", 1, worker.id, None, False, None, False),
        (6, 7, "line-7", "model", 1, nobody, None, None, None, False),
    ]


async def test_all_items_of_a_new_batch_are_pending(db: Session) -> None:
    batch = await a_batch(db, {"small": 2, "large": 3})
    assert await states(db, batch) == ["pending"] * 5


async def test_lines_of_several_lanes_are_distinguished(db: Session) -> None:
    """Small and large take turns, so both lanes have an item 0; only one of them is done."""
    worker, batch = a_worker(), await a_batch(db, {"small": 2, "large": 2})
    items = await take(db, worker)
    await complete(db, worker, [item for item in items if item.claim.model == "large"][:1])
    rows = await sql(db, "SELECT line_no, model, state FROM batchline.requests ORDER BY line_no")
    assert rows == [
        (1, "small", "claimed"),
        (2, "large", "completed"),
        (3, "small", "claimed"),
        (4, "large", "claimed"),
    ]
    assert await states(db, batch) == ["claimed", "completed", "claimed", "claimed"]


async def test_two_batches_over_one_file_have_items_of_their_own(db: Session) -> None:
    worker, file_id = a_worker(), await a_file(db, {"model": 2})
    first, second = await a_batch(db, file_id=file_id), await a_batch(db, file_id=file_id)
    items = [item for item in await take(db, worker, 4) if item.claim.batch_id == first.id]
    await complete(db, worker, items)
    assert await states(db, first) == ["completed", "completed"]
    assert await states(db, second) == ["claimed", "claimed"]


async def test_a_retry_that_has_come_due_is_pending_again(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 1)
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [retry(item, LATER)])
    assert await states(db, batch) == ["retrying"]
    await pass_time(db)
    assert await states(db, batch) == ["pending"]
    (item,) = await take(db, worker)
    assert await states(db, batch) == ["claimed"]
    assert item.claim.attempt == 2


async def test_what_a_worker_gave_back_is_pending(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 2)
    await take(db, worker)
    await spans.release(db, worker.id)
    assert await states(db, batch) == ["pending", "pending"]


async def test_what_a_lost_worker_holds_is_claimed_until_another_one_takes_it(db: Session) -> None:
    lost, heir, batch = a_worker(), a_worker(), await a_batch(db, 2)
    await take(db, lost)
    await kill(db, lost)
    assert await states(db, batch) == ["claimed", "claimed"]
    await take(db, heir, 1)
    assert await states(db, batch) == ["claimed", "pending"], "the rest of a split span is free"


async def test_a_task_is_processing_whether_it_waits_or_is_polled(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 1)
    await park(db, worker, await take(db, worker), "task", delay=LATER)
    assert await states(db, batch) == ["processing"], "not yet due"
    await pass_time(db)
    assert await states(db, batch) == ["processing"], "due"
    (item,) = await take(db, worker)
    assert item.claim.task_id == "task"
    assert await states(db, batch) == ["processing"], "in a worker's hands"
    await complete(db, worker, [item])
    assert await states(db, batch) == ["completed"]


@pytest.mark.parametrize(("reason", "ending"), [("cancel", "canceled"), ("expire", "expired")])
async def test_what_had_no_outcome_when_the_batch_ended_is_canceled_or_expired(
    db: Session, reason: str, ending: str
) -> None:
    worker = a_worker()
    batch, items = await one_in_every_state(db, worker)
    await batches.close(db, batch.id, reason)  # type: ignore[arg-type]
    now = await states(db, batch)
    assert now[:2] == ["completed", "failed"]
    assert now[5] == "claimed", "what is in flight may finish"
    await complete(db, worker, [items[5]])
    frozen = ["completed", "failed", ending, ending, ending, "completed", ending]
    assert await states(db, batch) == frozen
    await finalize(db, worker, batch)
    assert await states(db, batch) == frozen, "the end of the batch changes no item"


async def test_a_held_item_of_a_frozen_batch_is_canceled(db: Session) -> None:
    """Its worker was lost, so the batch did not wait for it."""
    worker, batch = a_worker(), await a_batch(db, 2)
    items = await take(db, worker, 1)
    await kill(db, worker)
    await batches.close(db, batch.id, "cancel")
    assert await states(db, batch) == ["canceled", "canceled"]
    await complete(db, worker, items)
    assert await states(db, batch) == ["canceled", "canceled"], "a verdict that comes too late is dropped"


async def test_a_finished_batch_has_outcomes_only(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 3)
    (item,) = await take(db, worker, 1)
    await spans.settle(db, worker.id, [failed(item)])
    await run_to_the_end(db, worker)
    assert await states(db, batch) == ["failed", "completed", "completed"]
    await finalize(db, worker, batch)
    assert await states(db, batch) == ["failed", "completed", "completed"]


@pytest.mark.parametrize("how", ["parked and asked for", "given back"])
async def test_an_item_that_is_shown_as_canceled_never_has_an_outcome(database_url: str, how: str) -> None:
    """Until the batch is frozen a verdict still counts; to say canceled is a promise that is not kept."""
    async with Session(database_url, "test") as db:
        worker, other, batch = a_worker(), a_worker(), await a_batch(db, 2)
        items = await take(db, worker, 1)
        await take(db, other, 1)
        if how == "given back":
            await spans.release(db, worker.id)
        else:
            await park(db, worker, items, "task")
            items = await take(db, worker, 1)
        # The other one is still at work, so the batch is not frozen yet.
        await batches.close(db, batch.id, "cancel")
        displayed = await states(db, batch)
        await complete(db, worker, items)
        assert (await states(db, batch))[0] == "completed", "a verdict before the freeze counts"
        assert displayed[0] == ("pending" if how == "given back" else "processing")

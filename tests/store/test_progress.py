"""Notes of progress: what settles write for charts, and what charts read."""

from datetime import timedelta

import pytest

from batchline.batches.retry import retry as retry_batch
from batchline.model import Batch, Retried, RetrySelection
from batchline.store import batches, overview, spans
from batchline.store.listing import BatchViewer
from batchline.store.session import Session
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    complete,
    completed,
    failed,
    finalize,
    overrun,
    read,
    retry,
    sql,
    take,
)

DEFAULT = BatchViewer("default")


async def age(db: Session, seconds: float) -> None:
    """Everything that was noted, and the start of every batch, is so much longer ago."""
    past = f"interval '{seconds} seconds'"
    await sql(db, f"UPDATE batchline.progress SET at = at - {past}, began_at = began_at - {past}")
    await sql(db, f"UPDATE batchline.batches SET in_progress_at = in_progress_at - {past}")


async def noted(db: Session, batch: Batch) -> list[tuple[int, int]]:
    """(completed, failed) of each note."""
    return [(note.completed, note.failed) for note in await overview.notes(db, batch.id)]


async def test_a_batch_is_noted_once_per_minute_and_when_it_ends(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 6)
    items = await take(db, worker)
    # However slow the machine is: the last note is in the future.
    await age(db, -900)
    await complete(db, worker, items[:1])
    assert await noted(db, batch) == []
    await age(db, 970)
    await complete(db, worker, items[1:2])
    await age(db, -900)
    await complete(db, worker, items[2:3])
    assert await noted(db, batch) == [(2, 0)]
    await age(db, 970)
    await spans.settle(db, worker.id, [failed(items[3])])
    assert await noted(db, batch) == [(2, 0), (1, 1)]
    await complete(db, worker, items[4:])

    assert await noted(db, batch) == [(2, 0), (1, 1), (2, 0)]
    assert [note.seconds >= 70 for note in await overview.notes(db, batch.id)] == [True, True, False]


@pytest.mark.parametrize(("running", "step"), [(3600.0, 60), (5 * 3600.0, 300), (2 * 86_400.0, 1800)])
async def test_long_batches_are_noted_less_often(db: Session, running: float, step: float) -> None:
    worker, batch = a_worker(), await a_batch(db, 9)
    items = await take(db, worker)
    await age(db, running)
    await complete(db, worker, items[:1])
    assert len(await noted(db, batch)) == 1
    await age(db, step / 2)
    await complete(db, worker, items[1:2])
    assert len(await noted(db, batch)) == 1
    await age(db, step / 2 + 1)
    await complete(db, worker, items[2:3])
    assert len(await noted(db, batch)) == 2


async def test_a_note_says_how_many_items_are_in_flight(db: Session) -> None:
    worker, _ = a_worker(), await a_batch(db, 9)
    items = await take(db, worker, 6)
    await age(db, 60)
    await spans.settle(db, worker.id, [completed(items[0]), retry(items[1], LATER)])

    assert await sql(db, "SELECT in_flight, tokens, more_tokens FROM batchline.progress") == [(4, 8, 8)]


async def test_a_retry_that_puts_failures_back_notes_no_negative_number(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 2)
    first, second = await take(db, worker)
    await spans.settle(db, worker.id, [completed(first), failed(second)])
    await finalize(db, worker, batch)
    await retry_batch(db, await read(db, batch), RetrySelection(), tenant="default")
    await complete(db, worker, await take(db, worker))

    assert [(each.completed, each.failed) for each in await overview.notes(db, batch.id)] == [(1, 1), (1, 0)]


async def test_throughput_adds_up_the_notes_of_a_tenant_by_minute(db: Session) -> None:
    worker = a_worker()
    for tenant in ("default", "default", "other"):
        await a_batch(db, 10, tenant=tenant)
    items = await take(db, worker)
    await age(db, 60)
    await complete(db, worker, items)

    for tenant, number in (("default", 20), ("other", 10), ("nobody", 0)):
        found = await overview.throughput(db, tenant, 60)
        assert sum(each.completed for each in found) == pytest.approx(number)
        assert (await overview.spent_today(db, tenant)).tokens == number * 8


async def test_a_note_of_several_minutes_counts_in_each_of_them(db: Session) -> None:
    worker, _ = a_worker(), await a_batch(db, 31)
    items = await take(db, worker)
    await age(db, 600)
    await complete(db, worker, items[:30])

    found = await overview.throughput(db, "default", 60)
    assert len(found) in (10, 11)
    assert {round(each.completed, 1) for each in found} == {3.0}
    assert {each.in_flight for each in found} == {1.0}


async def test_old_notes_are_dropped_in_chunks(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 1)
    await complete(db, worker, await take(db, worker))
    assert await overview.drop_old_notes(db, timedelta(days=1)) == 0
    await age(db, 2 * 86_400)

    assert await overview.drop_old_notes(db, timedelta(days=1)) == 1
    assert await overview.notes(db, batch.id) == []


async def test_counts_tell_open_paused_late_and_failed_batches_of_one_tenant(db: Session) -> None:
    worker = a_worker()
    lost, paused, late, other = [
        await a_batch(db, 1, tenant=tenant) for tenant in ("default", "default", "default", "other")
    ]
    await spans.settle(
        db, worker.id, [failed(item) for item in await take(db, worker, 1, spans.Scope(batch_id=lost.id))]
    )
    await finalize(db, worker, lost)
    await batches.close(db, paused.id, "pause")
    await overrun(db, late.id)

    found = await overview.open_counts(db, DEFAULT)
    assert found == overview.OpenCounts(2, 1, 0, 1, 1, found.read_at)
    assert (await overview.open_counts(db, BatchViewer("other"))).open == 1
    assert other.tenant == "other"


async def test_loads_and_latencies_are_those_of_the_tenant(db: Session) -> None:
    worker = a_worker("host:7@machine/1")
    await a_batch(db, {"small": 4})
    await a_batch(db, {"large": 2}, tenant="other")
    items = [item for item in await take(db, worker) if item.claim.model == "small"]
    items[0].stamps.sent, items[0].stamps.answered = 1.0, 1.25
    await complete(db, worker, items[:1])

    (load,) = await overview.worker_loads(db, "default")
    assert (load.id, load.name, load.key, load.items) == (worker.id, "host:7@machine/1", "small", 3)
    assert [each.key for each in await overview.latencies(db, "default")] == ["small"]
    assert await overview.latencies(db, "other") == []
    (idle,) = await overview.worker_loads(db, "nobody")
    assert (idle.key, idle.items) == (None, 0)


async def test_refusals_are_counted_by_key_for_the_tenant(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, {"small": 3})
    items = await take(db, worker)
    await spans.settle(db, worker.id, [Retried(each, "http_429", "slow down", LATER) for each in items[:2]])
    await spans.settle(db, worker.id, [Retried(items[2], "http_500", "broken", LATER)])

    assert await overview.refusals(db, "default") == {"small": 2}
    assert await overview.refusals(db, "other") == {}


async def test_lanes_count_their_items_by_state(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, {"small": 6, "large": 4})
    items = await take(db, worker, 8)
    small = [item for item in items if item.claim.model == "small"]
    await spans.settle(db, worker.id, [completed(small[0]), failed(small[1]), retry(small[2], LATER)])

    lanes = {each.model: each for each in await overview.lanes(db, batch.id)}
    assert sum(each.next for each in lanes.values()) == 8
    assert (lanes["small"].failed, lanes["small"].retrying) == (1, 1)
    assert lanes["small"].in_flight == len(small) - 3
    assert not lanes["small"].capped

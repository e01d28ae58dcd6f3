"""Lanes that are fed while their batch runs: what items emit, and what callers append, runs exactly once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from batchline.batches import deletion, erasure, maintenance, retention
from batchline.batches.erasure import ErasureProgress
from batchline.batches.finalize import finalize_one
from batchline.batches.retry import retry as retry_batch
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.governance import tenants as governed
from batchline.model import (
    Batch,
    BatchStatus,
    Completed,
    Item,
    ItemCounts,
    RetrySelection,
    RunSettings,
    Settled,
    TaskParked,
    Unfinished,
    Verdict,
)
from batchline.model.emission import PYTHON
from batchline.model.ids import new_id
from batchline.store import batches, doctor, feeding, files, items, spans
from batchline.store.events import Event, notifications
from batchline.store.session import Session, StatementRefused
from batchline.store.spans import Scope, WorkerId
from batchline.upstreams.memory import BodyMemory
from batchline.worker.lease import Lease
from batchline.worker.settler import Settler
from tests.support.builders import (
    LATER,
    a_batch,
    a_pipeline,
    a_worker,
    completed,
    deferred,
    emission,
    emitting,
    failed,
    kill,
    overrun,
    park,
    pass_time,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.finalizing import recorded
from tests.support.tenants import OPERATOR

FETCH, PARSE, STORE = (PYTHON + stage for stage in ("fetch", "parse", "store"))
ALL = RetrySelection()
ONLY_FAILED = RetrySelection(frozenset({Unfinished.FAILED}))


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


def of(url: str) -> Scope:
    return Scope((url,))


async def sound(db: Session, batch: Batch) -> ItemCounts:
    """Nothing contradicts the design, and each item is counted in one state."""
    assert (await doctor.examine(db)).findings == ()
    counts = (await read(db, batch)).counts
    total, *states = msgspec.structs.astuple(counts)
    assert min(states) >= 0, counts
    assert sum(states) == total, counts
    return counts


def states(counts: ItemCounts) -> dict[str, int]:
    """All states that occur."""
    return {name: n for name, n in msgspec.structs.asdict(counts).items() if n and name != "total"}


async def lines(db: Session, batch: Batch, url: str) -> list[tuple[int, int, str]]:
    """Ordinal, line number and key of the items of one stage."""
    rows = await sql(
        db,
        """
        SELECT l.ordinal, l.line_no, l.custom_id
        FROM batchline.lanes AS n
        JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
        WHERE n.batch_id = %(batch)s AND n.url = %(url)s
        ORDER BY l.ordinal
        """,
        batch=batch.id,
        url=url,
    )
    return [(ordinal, line_no, key) for ordinal, line_no, key in rows]


async def fetched(db: Session, worker: WorkerId, *keys: str) -> list[Settled]:
    """Each item of the first stage emits an item for each key."""
    verdicts = [emitting(item, "parse", *keys) for item in await take(db, worker, scope=of(FETCH))]
    return await spans.settle(db, worker.id, verdicts)


async def end(db: Session, objects: Objects, batch: Batch) -> Batch:
    ended = await finalize_one(db, objects, a_worker(), batch.id)
    assert ended is not None, "this batch is not there to be finalized"
    return ended


async def ended_batch(db: Session, objects: Objects, *, fail: bool = False) -> Batch:
    """Two items of the first stage, which add three to the second; one of these fails if wanted."""
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    first, second = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(first, "parse", "a", "b"), emitting(second, "parse", "c")])
    parsed = await take(db, worker)
    await spans.settle(
        db, worker.id, [failed(i) if fail and i.custom_id == b"b" else completed(i) for i in parsed]
    )
    return await end(db, objects, batch)


# Emission


async def test_what_a_completed_item_emits_runs_in_its_stage(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1), a_worker()
    (item,) = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [emitting(item, "parse", "a", "b")])
    assert settled.emitted
    assert not settled.finished

    assert (await sound(db, batch)).total == 3
    emitted = await take(db, worker)
    assert [(i.claim.url, i.claim.model, i.claim.key) for i in emitted] == [(PARSE, "parse", PARSE)] * 2
    assert [(i.ordinal, i.line_no, i.custom_id, i.body) for i in emitted] == [
        (0, 2, b"a", b'{"key": "a"}'),
        (1, 3, b"b", b'{"key": "b"}'),
    ]
    (settled,) = await spans.settle(db, worker.id, [completed(item) for item in emitted])
    assert settled.finished
    assert not settled.emitted
    await sound(db, batch)


async def test_an_item_that_emits_nothing_adds_nothing(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1), a_worker()
    (settled,) = await spans.settle(db, worker.id, [completed(i) for i in await take(db, worker)])
    assert settled.finished
    assert not settled.emitted
    assert states(await sound(db, batch)) == {"completed": 1}


async def test_line_numbers_go_on_in_the_batch_and_ordinals_in_the_stage(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", "store", items=3), a_worker()
    first, second, third = await take(db, worker)
    emitted = (emission("store", "a"), emission("parse", "b"), emission("store", "c"))
    await spans.settle(db, worker.id, [Completed(first, 200, b"{}", emitted=emitted)])
    await spans.settle(db, worker.id, [emitting(second, "parse", "d", "e"), emitting(third, "store", "f")])

    assert await lines(db, batch, STORE) == [(0, 4, "a"), (1, 6, "c"), (2, 9, "f")]
    assert await lines(db, batch, PARSE) == [(0, 5, "b"), (1, 7, "d"), (2, 8, "e")]
    await sound(db, batch)


async def test_a_verdict_that_is_late_emits_nothing(db: Session) -> None:
    """Whether the group is refused whole, or one verdict of it when it is sent apart."""
    batch = await a_pipeline(db, "fetch", "parse", items=3)
    slow, quick = a_worker("slow"), a_worker("quick")
    held = await take(db, slow)
    await kill(db, slow)
    again = await take(db, quick, 1)
    await spans.settle(db, quick.id, [emitting(again[0], "parse", "quick")])

    late: list[Verdict] = []
    verdicts = [emitting(item, "parse", f"slow-{item.line_no}") for item in held]
    await spans.settle(db, slow.id, verdicts, late.extend)
    assert [verdict.item.line_no for verdict in late] == [1]
    assert [key for *_, key in await lines(db, batch, PARSE)] == ["quick", "slow-2", "slow-3"]
    await sound(db, batch)


async def test_the_same_settle_sent_twice_emits_once(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    verdicts = [emitting(item, "parse", f"of-{item.line_no}") for item in await take(db, worker)]
    assert await spans.settle(db, worker.id, verdicts)
    assert await spans.settle(db, worker.id, verdicts) == []
    assert [key for *_, key in await lines(db, batch, PARSE)] == ["of-1", "of-2"]
    assert (await sound(db, batch)).total == 4


async def test_only_completed_items_emit(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=3), a_worker()
    one, two, three = await take(db, worker)
    await spans.settle(db, worker.id, [failed(one), retry(two), deferred(three)])
    assert await lines(db, batch, PARSE) == []
    again = await take(db, worker)
    assert sorted(item.line_no for item in again) == [2, 3]
    await spans.settle(db, worker.id, [emitting(item, "parse", "x") for item in again])
    assert len(await lines(db, batch, PARSE)) == 2
    assert states(await sound(db, batch)) == {"completed": 2, "failed": 1, "pending": 2}


async def test_one_settle_emits_into_several_batches(db: Session) -> None:
    worker = a_worker()
    some = [await a_pipeline(db, "fetch", "parse", items=2) for _ in range(3)]
    verdicts = [emitting(i, "parse", f"{i.claim.batch_id}-{i.line_no}") for i in await take(db, worker)]
    settled = await spans.settle(db, worker.id, verdicts)
    assert {row.batch_id for row in settled if row.emitted} == {batch.id for batch in some}
    for batch in some:
        expected = [(n, n + 3, f"{batch.id}-{n + 1}") for n in range(2)]
        assert await lines(db, batch, PARSE) == expected
        await sound(db, batch)


async def test_an_emission_of_one_batch_is_not_counted_for_the_next_one_of_the_same_settle(
    db: Session,
) -> None:
    worker = a_worker()
    some = [await a_pipeline(db, "fetch", "parse", items=1) for _ in range(2)]
    items_of = {item.claim.batch_id: item for item in await take(db, worker)}
    emits, ends = sorted(some, key=lambda batch: batch.id)
    verdicts = [emitting(items_of[emits.id], "parse", "a"), completed(items_of[ends.id])]
    settled = {row.batch_id: row for row in await spans.settle(db, worker.id, verdicts)}
    assert (settled[emits.id].emitted, settled[emits.id].finished) == (True, False)
    assert (settled[ends.id].emitted, settled[ends.id].finished) == (False, True)
    assert (await sound(db, ends)).total == 1


async def test_a_stage_that_the_batch_has_not_is_refused_and_nothing_is_stored(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    one, two = await take(db, worker)
    with pytest.raises(StatementRefused, match="has no stage python:other"):
        await spans.settle(db, worker.id, [emitting(one, "parse", "a"), emitting(two, "other", "b")])
    assert states(await sound(db, batch)) == {"in_progress": 2}


async def test_an_item_cannot_emit_into_its_own_stage_if_that_is_not_fed(db: Session) -> None:
    await a_pipeline(db, "fetch", "parse", items=1)
    worker = a_worker()
    (item,) = await take(db, worker)
    with pytest.raises(StatementRefused, match="has no stage python:fetch"):
        await spans.settle(db, worker.id, [emitting(item, "fetch", "again")])


async def test_only_the_item_fails_that_emits_into_a_stage_that_is_not_there(db: Session) -> None:
    batch = await a_pipeline(db, "fetch", "parse", items=5)
    settings = WorkerSettings(settle_after=3600.0)
    lease = Lease(settings, lambda: 0.0, lambda: 0)
    memory = BodyMemory(settings.body_memory)
    settler = Settler(db, lease, settings, memory, lambda settled, earliest_retry: None)
    running = asyncio.create_task(settler.run())
    for item in await take(db, lease.worker):
        settler.add(emitting(item, "other" if item.line_no == 3 else "parse", f"of-{item.line_no}"))
    settler.stop()
    await running
    assert states(await sound(db, batch)) == {"completed": 4, "failed": 1, "pending": 4}
    assert Counter(key for *_, key in await lines(db, batch, PARSE)) == Counter(
        {f"of-{n}": 1 for n in (1, 2, 4, 5)}
    )


async def test_a_batch_ends_when_all_its_stages_have_ended(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", "store", items=2), a_worker()
    finished = []
    for url, next_stage in ((FETCH, "parse"), (PARSE, "store"), (STORE, None)):
        for item in await take(db, worker, scope=of(url)):
            verdict = completed(item) if next_stage is None else emitting(item, next_stage, "x")
            (settled,) = await spans.settle(db, worker.id, [verdict])
            finished.append(settled.finished)
            await sound(db, batch)
    assert finished == [False] * 5 + [True]
    assert (await read(db, batch)).status is BatchStatus.FINALIZING


async def test_a_stage_whose_items_fail_ends_the_batch_too(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    await fetched(db, worker, "a")
    (settled,) = await spans.settle(db, worker.id, [failed(item) for item in await take(db, worker)])
    assert settled.finished
    assert states(await sound(db, batch)) == {"completed": 2, "failed": 2}


async def test_failures_of_a_later_stage_pause_the_batch(db: Session) -> None:
    settings = RunSettings(max_failed=1)
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1, settings=settings), a_worker()
    await fetched(db, worker, "a", "b", "c")
    parsed = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [failed(item) for item in parsed[:2]])
    assert settled.paused
    assert await take(db, a_worker()) == []
    assert states(await sound(db, batch)) == {"completed": 1, "failed": 2, "in_progress": 1}


async def test_a_share_of_failures_counts_emitted_items_too(db: Session) -> None:
    settings = RunSettings(max_failed_percent=50.0)
    await a_pipeline(db, "fetch", "parse", items=1, settings=settings)
    worker = a_worker()
    await fetched(db, worker, "a", "b", "c")
    first, second, third = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [failed(first), failed(second)])
    assert not settled.paused, "two of four"
    (settled,) = await spans.settle(db, worker.id, [failed(third)])
    assert settled.finished


async def test_an_emitted_item_can_be_looked_up_by_its_line_number(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    await fetched(db, worker, "a")
    for ended in (False, True):
        line = await items.line(db, batch.id, 4, 1000)
        assert line is not None
        assert line.custom_id == "a"
        if not ended:
            await run_to_the_end(db, worker)


# Notifications


@asynccontextmanager
async def heard(db: Session, database_url: str) -> AsyncIterator[list[Event]]:
    """The events that the block has caused, once it has ended. Later ones end the waiting for them."""
    events: list[Event] = []
    async with aclosing(notifications(database_url)) as found:
        assert await anext(found) == Event("listening")
        yield events
        last = await a_batch(db, 1, tenant="other")
        async for event in found:
            if event.batch_id == last.id:
                break
            events.append(event)


async def test_workers_hear_of_items_of_a_stage_that_was_idle(db: Session, database_url: str) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=4), a_worker()
    first, second, third, fourth = await take(db, worker)
    async with heard(db, database_url) as events:
        await spans.settle(db, worker.id, [emitting(first, "parse", "a", "b")])
    assert events == [Event("open", batch.id)]
    async with heard(db, database_url) as events:
        await spans.settle(db, worker.id, [emitting(second, "parse", "c")])
        parsed = await take(db, worker, scope=of(PARSE))
        await spans.settle(db, worker.id, [emitting(third, "parse", "d")])
    assert events == [], "others wait or run, so workers look"
    parsed += await take(db, worker, scope=of(PARSE))
    await spans.settle(db, worker.id, [retry(item, LATER) for item in parsed])
    async with heard(db, database_url) as events:
        await spans.settle(db, worker.id, [emitting(fourth, "parse", "e")])
    assert events == [Event("open", batch.id)], "nobody looks at a stage whose items all wait for another try"


async def test_workers_hear_of_appended_items_and_of_a_release(db: Session, database_url: str) -> None:
    batch = await a_pipeline(db, "fetch", accepting=True, held=True)
    async with heard(db, database_url) as events:
        await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
        await feeding.release(db, batch.id)
    assert set(events) == {Event("open", batch.id)}


async def test_a_worker_hears_of_a_batch_that_a_release_has_ended(db: Session, database_url: str) -> None:
    """It polls then, and finalizes the batch. Nothing opens that could be claimed."""
    batch = await a_pipeline(db, "fetch", accepting=True)
    async with heard(db, database_url) as events:
        await feeding.release(db, batch.id)
    assert events == [Event("closed", batch.id)]


# Batches that are closed meanwhile


async def test_what_an_item_of_a_paused_batch_emits_waits_for_the_resume(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1), a_worker()
    held = await take(db, worker)
    await batches.close(db, batch.id, "pause")
    await spans.settle(db, worker.id, [emitting(item, "parse", "a") for item in held])
    assert await take(db, worker) == []
    assert states(await sound(db, batch)) == {"completed": 1, "pending": 1}
    await batches.resume(db, batch.id)
    assert [item.custom_id for item in await take(db, worker)] == [b"a"]


@pytest.mark.parametrize("reason", ["cancel", "expire"])
async def test_what_the_last_item_of_a_closing_batch_emits_never_runs(
    db: Session, objects: Objects, reason: str
) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    held = await take(db, worker)
    await batches.close(db, batch.id, "cancel" if reason == "cancel" else "expire")
    (settled,) = await spans.settle(db, worker.id, [emitting(held[0], "parse", "a")])
    assert (settled.closing, settled.finished) == (True, False)
    await sound(db, batch)
    (settled,) = await spans.settle(db, worker.id, [emitting(held[1], "parse", "b", "c")])
    assert settled.finished
    ending = "cancelled" if reason == "cancel" else "expired"
    assert states(await sound(db, batch)) == {"completed": 2, ending: 3}
    ended = await end(db, objects, batch)
    assert ended.status == ending
    assert [
        msgspec.json.decode(n)["custom_id"] for n in await recorded(db, objects, ended.error_file_id)
    ] == [*("a", "b", "c")]
    await sound(db, batch)


async def test_a_batch_past_its_deadline_expires_with_what_was_emitted(db: Session, objects: Objects) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1), a_worker()
    await fetched(db, worker, "a", "b")
    await overrun(db, batch.id)
    assert await take(db, worker) == []
    await maintenance.run_due(db, objects)
    assert states(await sound(db, batch)) == {"completed": 1, "expired": 2}


async def test_what_is_emitted_into_a_batch_that_is_deleted_meanwhile_is_dropped(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    held = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(held[0], "parse", "a")])
    await deletion.delete(db, objects, await read(db, batch), force=True)
    assert await spans.settle(db, worker.id, [emitting(held[1], "parse", "b")]) == []
    assert await left(db, objects) == {}


# Appending


async def test_appended_items_run_and_the_batch_ends_after_the_release(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", accepting=True), a_worker()
    assert (await sound(db, batch)).total == 0
    assert await feeding.append(db, batch.id, FETCH, [(b"a", b"1"), (b"b", b"2")]) == 0
    assert await feeding.append(db, batch.id, FETCH, [(b"c", b"3")]) == 2
    assert states(await sound(db, batch)) == {"pending": 3}
    taken = await take(db, worker)
    assert [(i.ordinal, i.line_no, i.custom_id, i.body) for i in taken] == [
        (0, 1, b"a", b"1"),
        (1, 2, b"b", b"2"),
        (2, 3, b"c", b"3"),
    ]
    (settled,) = await spans.settle(db, worker.id, [completed(item) for item in taken])
    assert not settled.finished, "it accepts more items"
    assert await feeding.append(db, batch.id, FETCH, [(b"d", b"4")]) == 3
    assert await feeding.release(db, batch.id)
    assert (await read(db, batch)).status is BatchStatus.IN_PROGRESS
    await sound(db, batch)
    (settled,) = await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker)])
    assert settled.finished
    assert states(await sound(db, batch)) == {"completed": 4}


async def test_a_release_when_all_items_have_ended_ends_the_batch(db: Session, objects: Objects) -> None:
    batch, worker = await a_pipeline(db, "fetch", accepting=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
    await run_to_the_end(db, worker)
    assert (await read(db, batch)).finalizing_at is None
    assert await feeding.release(db, batch.id)
    assert (await read(db, batch)).finalizing_at is not None
    await sound(db, batch)
    assert (await end(db, objects, batch)).status is BatchStatus.COMPLETED
    await sound(db, batch)


async def test_a_batch_that_is_released_without_items_ends(db: Session, objects: Objects) -> None:
    batch = await a_pipeline(db, "fetch", "parse", accepting=True)
    assert await feeding.release(db, batch.id)
    await sound(db, batch)
    ended = await end(db, objects, batch)
    assert (ended.status, ended.total) == (BatchStatus.COMPLETED, 0)
    await sound(db, batch)


async def test_nothing_of_a_held_batch_runs_before_its_release(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", accepting=True, held=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
    assert await take(db, worker) == []
    assert (await read(db, batch)).status is BatchStatus.PAUSED
    assert states(await sound(db, batch)) == {"pending": 1}
    assert await feeding.release(db, batch.id)
    assert (await read(db, batch)).status is BatchStatus.IN_PROGRESS
    await sound(db, batch)
    await fetched(db, worker, "b")
    await run_to_the_end(db, worker)
    assert states(await sound(db, batch)) == {"completed": 2}


async def test_a_held_batch_of_a_fixed_number_of_items_runs_after_its_release(db: Session) -> None:
    """`hold` with items: these are in the file, and the batch accepts more."""
    batch, worker = await a_pipeline(db, "fetch", accepting=True, held=True), a_worker()
    await batches.close(db, batch.id, "pause")
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
    await batches.resume(db, batch.id)
    assert await take(db, worker) == [], "a resume is not a release"
    await sound(db, batch)
    await batches.close(db, batch.id, "pause")
    assert await feeding.release(db, batch.id)
    assert await take(db, worker) == [], "it is still paused"
    await sound(db, batch)
    await batches.resume(db, batch.id)
    assert len(await take(db, worker)) == 1


async def test_nothing_can_be_appended_after_the_release(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", accepting=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
    assert await feeding.release(db, batch.id)
    assert await feeding.append(db, batch.id, FETCH, [(b"b", b"2")]) is None
    assert not await feeding.release(db, batch.id)
    await run_to_the_end(db, worker)
    assert await feeding.append(db, batch.id, FETCH, [(b"b", b"2")]) is None
    assert (await sound(db, batch)).total == 1


@pytest.mark.parametrize("reason", ["cancel", "expire"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "idle"])
async def test_nothing_can_be_appended_to_a_batch_that_is_closing(
    db: Session, objects: Objects, reason: str, running: bool
) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", accepting=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1"), (b"b", b"2")])
    taken = await take(db, worker, 1) if running else []
    await batches.close(db, batch.id, "cancel" if reason == "cancel" else "expire")
    assert await feeding.append(db, batch.id, FETCH, [(b"c", b"3")]) is None
    await sound(db, batch)
    assert await feeding.release(db, batch.id) is running, "it accepts nothing once it is frozen"
    await sound(db, batch)
    if running:
        (settled,) = await spans.settle(db, worker.id, [emitting(taken[0], "parse", "x")])
        assert settled.finished
    assert (await end(db, objects, batch)).total == (3 if running else 2)
    await sound(db, batch)


async def test_an_ordinary_batch_accepts_no_items(db: Session) -> None:
    ordinary, pipeline = await a_batch(db, 1), await a_pipeline(db, "fetch", "parse")
    for batch in (ordinary, pipeline):
        assert await feeding.append(db, batch.id, PARSE, [(b"a", b"1")]) is None
        assert not await feeding.release(db, batch.id)
    assert await feeding.append(db, new_id(), PARSE, [(b"a", b"1")]) is None
    assert not await feeding.release(db, new_id())


async def test_to_append_nothing_adds_nothing(db: Session) -> None:
    batch = await a_pipeline(db, "fetch", accepting=True)
    assert await feeding.append(db, batch.id, FETCH, []) == 0
    assert (await sound(db, batch)).total == 0


async def test_items_and_emissions_of_a_batch_share_its_line_numbers(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", accepting=True), a_worker()
    for n in range(3):
        await feeding.append(db, batch.id, FETCH, [(b"%d" % n, b"1")])
        await fetched(db, worker, f"of-{n}")
    assert await lines(db, batch, FETCH) == [(0, 1, "0"), (1, 3, "1"), (2, 5, "2")]
    assert await lines(db, batch, PARSE) == [(0, 2, "of-0"), (1, 4, "of-1"), (2, 6, "of-2")]
    assert states(await sound(db, batch)) == {"completed": 3, "pending": 3}


# Its end


async def test_the_results_of_all_stages_are_in_the_order_of_their_line_numbers(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", "store", items=4), a_worker()
    expected = 4
    for url, next_stage in ((FETCH, "parse"), (PARSE, "store"), (STORE, None)):
        while taken := await take(db, worker, 3, of(url)):
            shuffled = taken[1:] + taken[:1]
            verdicts = [
                completed(i)
                if next_stage is None
                else emitting(i, next_stage, f"{i.line_no}-a", f"{i.line_no}-b")
                for i in shuffled
            ]
            expected += 2 * len(taken) if next_stage else 0
            await spans.settle(db, worker.id, verdicts)
    ended = await end(db, objects, batch)
    assert ended.total == ended.completed == expected == 4 + 8 + 16
    found = await recorded(db, objects, ended.output_file_id)
    assert [msgspec.json.decode(line)["answer"] for line in found] == list(range(1, expected + 1))


async def test_the_file_of_an_ended_batch_has_all_lines(db: Session, objects: Objects) -> None:
    batch = await ended_batch(db, objects)
    file = await files.get(db, batch.file_id)
    assert file is not None
    written = [b'{"line": 1}', b'{"line": 2}', *(b'{"key": "%b"}' % key for key in (b"a", b"b", b"c"))]
    assert (file.line_count, file.bytes) == (5, sum(map(len, written)))
    totals = await sql(
        db,
        "SELECT p.url, p.total FROM batchline.file_lanes AS p JOIN batchline.files AS f ON f.no = p.file_no"
        " WHERE f.id = %(file)s ORDER BY p.lane_no",
        file=batch.file_id,
    )
    assert totals == [(FETCH, 2), (PARSE, 3)]
    await sound(db, batch)


async def test_the_bytes_of_all_lines_count_for_the_tenant_when_the_batch_has_ended(
    db: Session, objects: Objects
) -> None:
    batch = await ended_batch(db, objects)
    output = await files.get(db, batch.output_file_id) if batch.output_file_id else None
    file = await files.get(db, batch.file_id)
    assert file is not None
    assert output is not None
    ((stored, lines_run, failures),) = await sql(
        db,
        "SELECT stored, lines, failed FROM batchline.tenant_usage WHERE tenant = %(tenant)s"
        " ORDER BY day DESC, seq DESC LIMIT 1",
        tenant=batch.tenant,
    )
    assert stored == file.bytes + output.bytes
    assert (lines_run, failures) == (5, 0)


async def test_a_batch_ends_though_its_items_are_more_than_the_quota(db: Session, objects: Objects) -> None:
    """As outputs are not refused: the work is done, and a batch that cannot end would be tried for ever."""
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1, tenant="small"), a_worker()
    await sql(db, "UPDATE batchline.tenants SET max_bytes = 100 WHERE name = 'small'")
    (item,) = await take(db, worker)
    large = (emission("parse", "a", b'"%b"' % (b"x" * 1000)),)
    await spans.settle(db, worker.id, [Completed(item, 200, b"{}", emitted=large)])
    await run_to_the_end(db, worker)
    assert (await end(db, objects, batch)).status is BatchStatus.COMPLETED
    await sound(db, batch)


# Retries


async def test_failed_items_that_run_again_emit(db: Session, objects: Objects) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=2), a_worker()
    first, second = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(first, "parse", "a"), failed(second)])
    await run_to_the_end(db, worker)
    ended = await end(db, objects, batch)
    assert states(ended.counts) == {"completed": 2, "failed": 1}

    assert await retry_batch(db, ended, ALL) == 1
    await sound(db, batch)
    (again,) = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [emitting(again, "parse", "b", "c")])
    assert not settled.finished
    assert await lines(db, batch, PARSE) == [(0, 3, "a"), (1, 4, "b"), (2, 5, "c")]
    assert states(await sound(db, batch)) == {"completed": 3, "pending": 2}
    await run_to_the_end(db, worker)
    ended = await end(db, objects, batch)
    assert states(await sound(db, batch)) == {"completed": 5}
    file = await files.get(db, ended.file_id)
    assert file is not None
    assert (file.line_count, file.bytes) == (5, 2 * len(b'{"line": 1}') + 3 * len(b'{"key": "a"}'))
    found = await recorded(db, objects, ended.output_file_id)
    assert [msgspec.json.decode(line)["answer"] for line in found] == [1, 2, 3, 4, 5]


async def test_an_end_after_a_retry_that_emits_nothing_charges_nothing_twice(
    db: Session, objects: Objects
) -> None:
    batch = await ended_batch(db, objects, fail=True)
    before = await files.get(db, batch.file_id)
    assert await retry_batch(db, batch, ALL) == 1
    await run_to_the_end(db, a_worker())
    await end(db, objects, batch)
    assert await files.get(db, batch.file_id) == before
    await sound(db, batch)


@pytest.mark.parametrize("unrun", [True, False])
async def test_never_run_emitted_items_of_a_cancelled_batch_can_run_later(
    db: Session, objects: Objects, unrun: bool
) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=3), a_worker()
    first, second, third = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(first, "parse", "a", "b"), failed(second)])
    await batches.close(db, batch.id, "cancel")
    await spans.settle(db, worker.id, [emitting(third, "parse", "c")])
    ended = await end(db, objects, batch)
    assert states(await sound(db, batch)) == {"completed": 2, "failed": 1, "cancelled": 3}

    assert await retry_batch(db, ended, ALL if unrun else ONLY_FAILED) == (4 if unrun else 1)
    await sound(db, batch)
    (again,) = await take(db, worker, scope=of(FETCH))
    await spans.settle(db, worker.id, [emitting(again, "parse", "d")])
    await sound(db, batch)
    ran = [item.custom_id async for item in each(db, worker)]
    assert sorted(ran) == ([b"a", b"b", b"c", b"d"] if unrun else [b"d"])
    ended = await end(db, objects, batch)
    assert ended.status is (BatchStatus.COMPLETED if unrun else BatchStatus.CANCELLED)
    assert states(await sound(db, batch)) == ({"completed": 7} if unrun else {"completed": 4, "cancelled": 3})


async def test_an_ended_batch_that_accepted_items_accepts_none_after_a_retry(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_pipeline(db, "fetch", accepting=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1"), (b"b", b"2")])
    await feeding.release(db, batch.id)
    await spans.settle(db, worker.id, [failed(item) for item in await take(db, worker)])
    ended = await end(db, objects, batch)
    assert await retry_batch(db, ended, ALL) == 2
    assert await feeding.append(db, batch.id, FETCH, [(b"c", b"3")]) is None
    await run_to_the_end(db, worker)
    assert states(await sound(db, batch)) == {"completed": 2}


async def test_a_batch_that_was_cancelled_while_it_accepted_items_ends_by_itself_after_a_retry(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_pipeline(db, "fetch", accepting=True), a_worker()
    await feeding.append(db, batch.id, FETCH, [(b"a", b"1")])
    await batches.close(db, batch.id, "cancel")
    assert await retry_batch(db, await end(db, objects, batch), ALL) == 1
    assert await feeding.append(db, batch.id, FETCH, [(b"b", b"2")]) is None
    assert not await feeding.release(db, batch.id)
    await run_to_the_end(db, worker)
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert states(await sound(db, batch)) == {"completed": 1}


async def each(db: Session, worker: WorkerId) -> AsyncIterator[Item]:
    """Complete everything that can be claimed, one claim after the other."""
    while taken := await take(db, worker):
        for item in taken:
            yield item
        await spans.settle(db, worker.id, [completed(item) for item in taken])


# Deletion


async def left(db: Session, objects: Objects) -> dict[str, int]:
    """Rows that are left of batches and files when maintenance is done."""
    await retention.drop_deleted_batches(db)
    await retention.enforce(db, objects, None)
    tables = (
        *("batches", "lanes", "cursors", "counters", "spans", "results", "retry_attempts", "lines"),
        *("file_lanes", "failure_causes", "cause_counts", "deleted_lanes"),
    )
    counts = {table: (await sql(db, f"SELECT count(*) FROM batchline.{table}"))[0][0] for table in tables}
    return {table: count for table, count in counts.items() if count}


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
async def test_deleting_a_batch_and_its_file_leaves_nothing(
    db: Session, objects: Objects, ended: bool
) -> None:
    if ended:
        batch = await ended_batch(db, objects, fail=True)
    else:
        batch, worker = await a_pipeline(db, "fetch", "parse", accepting=True), a_worker()
        await feeding.append(db, batch.id, FETCH, [(b"a", b"1"), (b"b", b"2")])
        await fetched(db, worker, "x", "y")
        await take(db, worker, 1)
    await deletion.delete(db, objects, batch, force=not ended)
    await files.delete(db, batch.tenant, batch.file_id)
    assert await left(db, objects) == {}
    ((stored,),) = await sql(
        db, "SELECT stored FROM batchline.tenant_usage ORDER BY day DESC, seq DESC LIMIT 1"
    )
    assert stored == 0


async def test_erasing_a_tenant_leaves_nothing_of_its_stages(db: Session, objects: Objects) -> None:
    """One batch runs, one accepts items, and one has ended."""
    worker = a_worker()
    ended = await a_pipeline(db, "fetch", "parse", items=1, tenant="acme")
    await fetched(db, worker, "a")
    await run_to_the_end(db, worker)
    await end(db, objects, ended)
    running = await a_pipeline(db, "fetch", "parse", items=2, tenant="acme")
    await fetched(db, worker, "b", "c")
    accepting = await a_pipeline(db, "fetch", accepting=True, tenant="acme")
    await feeding.append(db, accepting.id, FETCH, [(b"d", b"1")])
    assert (await sound(db, running)).total == 6

    await governed.begin_erasure(db, OPERATOR, "acme", reason="they left")
    assert await erasure.erase(db, objects, "acme", seconds=600) is ErasureProgress.DONE
    assert await left(db, objects) == {}
    assert await feeding.append(db, accepting.id, FETCH, [(b"e", b"1")]) is None


# Lost workers


async def test_a_worker_holds_one_item_at_a_time_that_two_workers_were_lost_with(db: Session) -> None:
    """So an item that was only held when a third one died is not taken for the cause."""
    batch = await a_pipeline(db, "fetch", "parse", items=5)
    for losses in range(2):
        lost = a_worker()
        held = await take(db, lost)
        assert [(item.claim.losses, item.claim.size) for item in held] == [(losses, 5)] * 5
        await kill(db, lost)
    worker, other = a_worker(), a_worker("other")
    (elsewhere,) = await take(db, other)
    finished = []
    while held := await take(db, worker):
        assert [(item.claim.losses, item.claim.size) for item in held] == [(2, 1)]
        assert [item for item in await take(db, worker) if item.claim.losses > 1] == []
        finished += held
        await spans.settle(db, worker.id, [completed(item) for item in held])
        await sound(db, batch)
    await spans.settle(db, other.id, [emitting(elsewhere, "parse", "x")])
    assert sorted(item.line_no for item in (*finished, elsewhere)) == [1, 2, 3, 4, 5]
    assert [item.claim.losses for item in await take(db, worker)] == [0]
    await sound(db, batch)


async def test_other_items_come_beside_one_that_two_workers_were_lost_with(db: Session) -> None:
    await a_pipeline(db, "fetch", "parse", items=2)
    for _ in range(2):
        lost = a_worker()
        await take(db, lost)
        await kill(db, lost)
    fresh = await a_pipeline(db, "fetch", "parse", items=3)
    worker = a_worker()
    held = [*await take(db, worker), *await take(db, worker)]
    assert sorted(item.claim.losses for item in held) == [0, 0, 0, 2]
    assert {item.claim.batch_id for item in held if not item.claim.losses} == {fresh.id}


async def test_only_the_item_that_kills_its_worker_goes_on_counting(db: Session) -> None:
    await a_pipeline(db, "fetch", items=3)
    for _ in range(2):
        lost = a_worker()
        await take(db, lost)
        await kill(db, lost)
    lost, good = a_worker("lost"), a_worker("good")
    (poison,) = await take(db, lost, 1)
    await run_to_the_end(db, good)
    await kill(db, lost)
    (again,) = await take(db, good)
    assert (again.line_no, again.claim.losses) == (poison.line_no, 3)


async def lost_once(db: Session) -> tuple[WorkerId, Item]:
    lost, worker = a_worker("lost"), a_worker()
    await take(db, lost)
    await kill(db, lost)
    (item,) = await take(db, worker)
    assert item.claim.losses == 1
    return worker, item


@pytest.mark.parametrize(
    ("back", "losses"), [(deferred, 1), (retry, 0)], ids=["deferral keeps it", "retry drops it"]
)
async def test_a_lost_worker_is_remembered_until_an_attempt_ends(
    db: Session, back: Callable[[Item], Verdict], losses: int
) -> None:
    await a_pipeline(db, "fetch", items=1)
    worker, item = await lost_once(db)
    await spans.settle(db, worker.id, [back(item)])
    (again,) = await take(db, worker)
    assert again.claim.losses == losses


@pytest.mark.parametrize(("polled", "losses"), [(True, 0), (False, 1)], ids=["a poll", "a deferral"])
async def test_a_poll_forgets_lost_workers(db: Session, polled: bool, losses: int) -> None:
    await a_pipeline(db, "fetch", items=1)
    worker = a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [TaskParked(item, "task", 0)])
    worker, item = await lost_once(db)
    assert item.claim.task_id == "task"
    await spans.settle(db, worker.id, [TaskParked(item, "task", 0, polled=polled)])
    (again,) = await take(db, worker)
    assert again.claim.losses == losses


async def test_a_worker_that_stops_is_not_lost(db: Session) -> None:
    await a_pipeline(db, "fetch", items=1)
    worker, _ = await lost_once(db)
    await spans.release(db, worker.id)
    (again,) = await take(db, a_worker())
    assert again.claim.losses == 1


async def test_items_of_other_lanes_are_not_given_one_by_one(db: Session) -> None:
    await a_batch(db, 5)
    for _ in range(3):
        lost = a_worker()
        held = await take(db, lost)
        assert {item.claim.size for item in held} == {5}
        await kill(db, lost)
    assert [(item.claim.losses, item.claim.size) for item in await take(db, a_worker())] == [(3, 5)] * 5


async def test_a_parked_item_of_a_fed_lane_is_parked_and_comes_back(db: Session) -> None:
    batch, worker = await a_pipeline(db, "fetch", "parse", items=1), a_worker()
    await fetched(db, worker, "a", "b")
    one, two = await take(db, worker)
    assert await park(db, worker, [one], "task-7", upstream=PARSE, delay=LATER) == 1
    await spans.settle(db, worker.id, [completed(two)])
    assert states(await sound(db, batch)) == {"completed": 2, "in_progress": 1}
    await pass_time(db)
    (again,) = await take(db, worker)
    assert (again.custom_id, again.claim.task_id) == (b"a", "task-7")

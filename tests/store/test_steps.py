"""Batches that run in steps: what may run, when a step ends, and who begins the next."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from batchline.batches import creation, maintenance
from batchline.batches.retry import retry as retry_batch
from batchline.batches.staging import staged
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    Item,
    RetrySelection,
    RunSettings,
    Unfinished,
)
from batchline.store import batches, doctor, spans, steps
from batchline.store.session import Session
from batchline.worker.worker import Worker
from tests.support.builders import (
    a_file,
    a_worker,
    complete,
    completed,
    failed,
    finalize,
    kill,
    pass_time,
    read,
    retry,
    sql,
    take,
)
from tests.support.executors import Answering
from tests.support.reuse import UPSTREAM, a_file_of, a_reusing_batch, answer, answer_all
from tests.support.scenes import Hand, Stage, Staged
from tests.support.scenes import completed as done


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with Stage(database_url) as stage:
        yield stage


async def a_stepped_batch(
    db: Session, lanes: Mapping[str, int] | int, settings: RunSettings, tenant: str = DEFAULT_TENANT
) -> Batch:
    file_id = await a_file(db, {"model": lanes} if isinstance(lanes, int) else lanes, tenant=tenant)
    return await creation.create(db, tenant=tenant, file_id=file_id, window="1h", settings=settings)


def in_steps(
    text: str, *, max_failed: int | str = 1000, pause: float | None = None, sample: int | None = None
) -> RunSettings:
    return staged(RunSettings(), steps=text, max_failed=max_failed, pause=pause, sample=sample)


async def run_a_step(db: Session, batch: Batch) -> list[Item]:
    """Complete what can be claimed, and begin the next step, as a worker does."""
    worker = a_worker()
    items = await take(db, worker)
    settled = await spans.settle(db, worker.id, [completed(item) for item in items])
    assert (await doctor.examine(db)).findings == ()
    for row in settled:
        if row.step_ended:
            await steps.begin(db, row.batch_id)
    assert (await doctor.examine(db)).findings == ()
    return items


async def sizes(db: Session, batch: Batch) -> list[int]:
    """The sizes of all steps, run to the end."""
    found = []
    while items := await run_a_step(db, batch):
        found.append(len(items))
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    return found


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("1,2,4,...", 20, [1, 2, 4, 8, 5]),
        ("1,2,4,…", 7, [1, 2, 4]),
        ("1,10,100", 500, [1, 10, 100, 389]),
        ("10%", 30, [3] * 10),
        ("30%", 10, [3, 3, 3, 1]),
        ("5", 12, [5, 5, 2]),
        ("1,5%,20%", 100, [1, 5, 20, 74]),
        ("1,3,...", 30, [1, 3, 9, 17]),
        ("1,100%", 10, [1, 9]),
        ("1000", 3, [3]),
        ("0.01%", 3, [1, 1, 1]),
    ],
)
async def test_steps_have_the_sizes_that_were_asked_for(
    db: Session, text: str, lines: int, expected: list[int]
) -> None:
    batch = await a_stepped_batch(db, lines, in_steps(text))
    assert await sizes(db, batch) == expected


async def test_lines_run_in_the_order_of_the_file_and_each_once(db: Session) -> None:
    batch = await a_stepped_batch(db, 20, in_steps("1,2,4,..."))
    lines: list[int] = []
    while items := await run_a_step(db, batch):
        lines += [item.line_no for item in items]
    assert lines == list(range(1, 21))


async def test_a_step_has_lines_of_each_model_in_proportion(db: Session) -> None:
    batch = await a_stepped_batch(db, {"a": 60, "b": 30, "c": 10}, in_steps("10"))
    models = [[item.claim.model for item in await run_a_step(db, batch)] for _ in range(10)]
    assert [sorted(each) for each in models] == [["a"] * 6 + ["b"] * 3 + ["c"]] * 10
    assert (await read(db, batch)).status is BatchStatus.FINALIZING


async def test_steps_of_many_small_lanes_have_exactly_their_size(db: Session) -> None:
    batch = await a_stepped_batch(db, {f"m{n}": n % 4 + 1 for n in range(23)}, in_steps("7"))
    found = await sizes(db, batch)
    assert found[:-1] == [7] * (len(found) - 1)
    assert sum(found) == batch.total


async def test_nothing_of_the_next_step_can_be_claimed_before_the_last_line_has_ended(db: Session) -> None:
    batch, worker = await a_stepped_batch(db, 20, in_steps("4")), a_worker()
    first, *rest = await take(db, worker)
    assert len(rest) == 3
    (row,) = await spans.settle(db, worker.id, [completed(item) for item in rest])
    assert not row.step_ended
    assert await steps.begin(db, batch.id) == 0
    assert await take(db, worker) == []
    # A line that is tried again has not ended.
    (row,) = await spans.settle(db, worker.id, [retry(first)])
    assert not row.step_ended
    assert await steps.begin(db, batch.id) == 0
    (again,) = await take(db, worker)
    (row,) = await spans.settle(db, worker.id, [failed(again)])
    assert row.step_ended, "a failure that is allowed ends the step, too"
    assert await take(db, worker) == [], "the next step has not begun"
    assert await steps.begin(db, batch.id) == 4
    assert await steps.begin(db, batch.id) == 0, "a second call changes nothing"
    assert len(await take(db, worker)) == 4


async def test_lines_that_are_held_back_are_pending(db: Session) -> None:
    batch = await a_stepped_batch(db, {"a": 10, "b": 10}, in_steps("4"))
    counts = (await read(db, batch)).counts
    assert (counts.pending, counts.retrying, counts.in_progress) == (20, 0, 0)
    sampled = await a_stepped_batch(db, {"a": 5000}, staged(RunSettings(), sample=3))
    counts = (await read(db, sampled)).counts
    assert (counts.pending, counts.retrying, counts.in_progress) == (5000, 0, 0)
    states = await sql(
        db,
        "SELECT state, count(*), count(*) FILTER (WHERE not_before > now()) FROM batchline.requests"
        " WHERE batch_id = %(batch)s GROUP BY state",
        batch=sampled.id,
    )
    assert states == [("pending", 5000, 0)]


async def test_a_batch_stops_at_max_failed_and_a_resume_goes_on(db: Session) -> None:
    batch, worker = await a_stepped_batch(db, 20, in_steps("1,2,4,...", max_failed=0)), a_worker()
    await run_a_step(db, batch)
    one, other = await take(db, worker)
    await spans.settle(db, worker.id, [completed(one)])
    (row,) = await spans.settle(db, worker.id, [failed(other)])
    assert (row.paused, row.step_ended) == (True, True)
    assert await steps.begin(db, batch.id) == 0, "it is paused"
    now = await read(db, batch)
    assert (now.pause_rule, now.finished, now.step) == ("max_failed", 3, 2)
    assert await steps.due(db) == []
    assert await sql(db, "SELECT type FROM batchline.outbox") == [("batch.paused",)]
    assert (await doctor.examine(db)).findings == ()

    assert await batches.resume(db, batch.id)
    assert len(await take(db, worker)) == 4, "the next step"
    assert (await doctor.examine(db)).findings == ()


async def test_a_share_of_failures_counts_the_lines_that_may_run_so_far(db: Session) -> None:
    batch = await a_stepped_batch(db, 1000, in_steps("10", max_failed="20%"))
    worker = a_worker()
    items = await take(db, worker)
    (row,) = await spans.settle(db, worker.id, [failed(item) for item in items[:2]])
    assert not row.paused
    (row,) = await spans.settle(db, worker.id, [failed(items[2])])
    assert row.paused, "three of ten, though not three of a thousand"
    assert (await read(db, batch)).paused_by == "max_failed"


async def test_a_pause_between_steps_delays_the_next_and_any_worker_begins_it(
    db: Session, tmp_path: Path
) -> None:
    objects = Objects.at(tmp_path / "objects")
    await maintenance.run_due(db, objects)
    batch = await a_stepped_batch(db, 20, in_steps("1,2,4,...", pause=300.0))
    await run_a_step(db, batch)
    assert await steps.begin(db, batch.id) == 0
    poll = await spans.poll(db, a_worker().id, spans.Scope())
    assert not poll.maintenance_due
    assert poll.next_due is not None
    assert 0 < poll.next_due <= 300
    now = await read(db, batch)
    assert now.status is BatchStatus.IN_PROGRESS
    assert now.next_step_at is not None
    assert now.step_began_at is not None
    assert timedelta(seconds=300) <= now.next_step_at - now.step_began_at < timedelta(seconds=310)

    await sql(db, "UPDATE batchline.batches SET next_step_at = now()")
    assert (await spans.poll(db, a_worker().id, spans.Scope())).maintenance_due
    await maintenance.run_due(db, objects)
    assert len(await take(db, a_worker())) == 2


async def test_a_worker_that_dies_between_two_steps_loses_nothing(db: Session, tmp_path: Path) -> None:
    """The settle that ends a step is committed, and nobody has begun the next."""
    objects = Objects.at(tmp_path / "objects")
    await maintenance.run_due(db, objects)
    batch, worker = await a_stepped_batch(db, 20, in_steps("4")), a_worker()
    await complete(db, worker, await take(db, worker))
    await kill(db, worker)
    assert await take(db, a_worker()) == []
    assert (await spans.poll(db, a_worker().id, spans.Scope())).maintenance_due
    await maintenance.run_due(db, objects)
    assert len(await take(db, a_worker())) == 4
    assert not (await spans.poll(db, a_worker().id, spans.Scope())).maintenance_due
    assert (await read(db, batch)).step == 2


async def test_lines_of_a_killed_worker_stay_in_their_step(db: Session) -> None:
    batch, dead = await a_stepped_batch(db, 20, in_steps("4")), a_worker()
    assert len(await take(db, dead)) == 4
    await kill(db, dead)
    again = await run_a_step(db, batch)
    assert [item.line_no for item in again] == [1, 2, 3, 4]
    assert len(await take(db, a_worker())) == 4


@pytest.mark.parametrize("reason", ["cancel", "expire"])
async def test_a_batch_that_is_closed_between_steps_ends_and_a_retry_goes_on_in_steps(
    db: Session, reason: str
) -> None:
    batch, worker = await a_stepped_batch(db, {"a": 10, "b": 10}, in_steps("2,4,8")), a_worker()
    await run_a_step(db, batch)
    items = await take(db, worker)
    await spans.settle(db, worker.id, [failed(items[0]), *map(completed, items[1:3])])
    await spans.settle(db, worker.id, [retry(items[3], 3600.0)])
    assert await batches.close(db, batch.id, "cancel" if reason == "cancel" else "expire")
    ended = await finalize(db, worker, batch)
    assert (ended.completed, ended.failed) == (4, 1)
    assert await steps.due(db) == []
    assert (await doctor.examine(db)).findings == ()

    assert await retry_batch(db, ended, RetrySelection()) == 16
    assert (await doctor.examine(db)).findings == ()
    # What never ran is held back, and the failed line is what is left of the steps before.
    (failed_before,) = await take(db, worker)
    assert failed_before.ordinal == items[0].ordinal
    (row,) = await spans.settle(db, worker.id, [completed(failed_before)])
    assert row.step_ended
    assert await steps.begin(db, batch.id) == 8
    assert await sizes(db, batch) == [8, 7]


async def test_a_retry_of_lines_that_never_ran_begins_the_next_step_at_once(db: Session) -> None:
    batch = await a_stepped_batch(db, 10, in_steps("3"))
    await run_a_step(db, batch)
    assert await batches.close(db, batch.id, "cancel")
    ended = await finalize(db, a_worker(), batch)
    await retry_batch(db, ended, RetrySelection(frozenset({Unfinished.CANCELLED})))
    assert await sizes(db, batch) == [3, 3, 1]


async def test_a_retry_that_leaves_out_what_never_ran_ends_without_it(db: Session) -> None:
    batch, worker = await a_stepped_batch(db, 10, in_steps("3")), a_worker()
    items = await take(db, worker)
    await spans.settle(db, worker.id, [failed(items[0]), *map(completed, items[1:])])
    assert await batches.close(db, batch.id, "cancel")
    ended = await finalize(db, worker, batch)
    assert await retry_batch(db, ended, RetrySelection(frozenset({Unfinished.FAILED}))) == 1
    assert (await doctor.examine(db)).findings == ()
    (row,) = await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker)])
    assert row.finished
    assert (await finalize(db, worker, batch)).status is BatchStatus.CANCELLED
    assert (await doctor.examine(db)).findings == ()


async def test_a_retry_after_the_last_step_is_not_in_steps(db: Session) -> None:
    batch, worker = await a_stepped_batch(db, 6, in_steps("2")), a_worker()
    for _ in range(3):
        await spans.settle(db, worker.id, [failed(item) for item in await take(db, worker)])
        await steps.begin(db, batch.id)
    ended = await finalize(db, worker, batch)
    assert await retry_batch(db, ended, RetrySelection()) == 6
    assert len(await take(db, worker)) == 6


async def test_steps_count_only_lines_without_a_reused_answer(db: Session) -> None:
    worker, bodies = a_worker(), [f'{{"q": {n}}}' for n in range(1000)]
    known = [body for n, body in enumerate(bodies) if n % 20]
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, known)))

    settings = staged(RunSettings(upstream=UPSTREAM), steps="1,2,4,...")
    batch = await a_reusing_batch(db, await a_file_of(db, bodies), settings=settings)
    assert (batch.reused, batch.step_total, batch.counts.pending) == (950, 951, 50)
    assert (await doctor.examine(db)).findings == ()
    found = []
    while items := await take(db, worker):
        await answer(db, worker, items)
        await steps.begin(db, batch.id)
        assert (await doctor.examine(db)).findings == ()
        found.append([item.line_no for item in items])
    assert [len(each) for each in found] == [1, 2, 4, 8, 16, 19]
    assert [no for each in found for no in each] == list(range(1, 1001, 20)), "in the order of the file"


async def test_a_batch_whose_answers_are_all_reused_has_no_steps(db: Session) -> None:
    worker, bodies = a_worker(), ['{"q": 1}', '{"q": 2}']
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, bodies)))
    settings = staged(RunSettings(upstream=UPSTREAM), steps="1", sample=1)
    batch = await a_reusing_batch(db, await a_file_of(db, bodies), settings=settings)
    assert (batch.status, batch.step_total, batch.next_step_at) == (BatchStatus.FINALIZING, None, None)
    assert (await doctor.examine(db)).findings == ()


async def test_a_sample_comes_before_the_first_step(db: Session) -> None:
    batch = await a_stepped_batch(db, {"a": 50, "b": 50}, in_steps("10,20,...", sample=7))
    assert len(await run_a_step(db, batch)) == 7
    now = await read(db, batch)
    assert (now.pause_rule, now.step) == ("sample", 0)
    assert await take(db, a_worker()) == []
    assert await batches.resume(db, batch.id)
    assert await sizes(db, batch) == [10, 20, 40, 23]


async def drain(database_url: str, executor: Answering, folder: Path) -> None:
    settings = WorkerSettings(drain=True, lease=30.0)
    worker = Worker(database_url, executor, Objects.at(folder / "objects"), settings, spans.Scope())
    async with asyncio.timeout(60):
        await worker.run()


async def test_a_worker_runs_a_batch_in_steps_to_its_end(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch, executor = await a_stepped_batch(db, {"a": 70, "b": 30}, in_steps("1,2,4,...")), Answering()
    await drain(database_url, executor, tmp_path)
    now = await read(db, batch)
    assert (now.status, now.completed, now.step) == (BatchStatus.COMPLETED, 100, 7)
    assert executor.lines == list(range(1, 101))
    assert (await doctor.examine(db)).findings == ()


async def test_a_draining_worker_waits_for_a_step_that_begins_soon(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_stepped_batch(db, 8, in_steps("4", pause=0.5))
    await drain(database_url, Answering(), tmp_path)
    assert (await read(db, batch)).status is BatchStatus.COMPLETED


async def test_pass_time_leaves_what_is_held_back(db: Session) -> None:
    """Of the tests themselves: time does not begin a step."""
    await a_stepped_batch(db, 5000, staged(RunSettings(), sample=3))
    await pass_time(db)
    assert len(await take(db, a_worker())) == 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE batchline.lanes SET drained = false", "fresh lines to claim before their step"),
        ("UPDATE batchline.batches SET step_total = step_total + 1", "are held back"),
        ("UPDATE batchline.batches SET next_step_at = now()", "the next step is due, but"),
        ("UPDATE batchline.batches SET step_total = NULL", "does not run in steps"),
    ],
)
async def test_the_doctor_sees_steps_that_went_wrong(db: Session, damage: str, message: str) -> None:
    await a_stepped_batch(db, {"a": 5000}, staged(RunSettings(), sample=3, steps="2"))
    assert (await doctor.examine(db)).findings == ()
    await sql(db, damage)
    found = [each for each in (await doctor.examine(db)).findings if each.check == "steps"]
    assert any(message in each.message for each in found), found


async def test_the_doctor_sees_a_batch_whose_next_step_nobody_will_begin(db: Session) -> None:
    worker = a_worker()
    await a_stepped_batch(db, 10, in_steps("2"))
    await complete(db, worker, await take(db, worker))
    assert (await doctor.examine(db)).findings == ()
    await sql(db, "UPDATE batchline.batches SET next_step_at = NULL")
    (found,) = (await doctor.examine(db)).findings
    assert (found.check, "stuck" in found.message) == ("steps", True)


# Two connections

Act = Callable[[Hand], bool | int]


def on_stage(stage: Stage, *totals: int) -> Staged:
    """A batch in steps of four lines, whose first step has begun."""
    batch = stage.batch(*totals, settings='{"steps": {"sizes": ["4"], "growth": 1.0}}')
    hand = stage.hand()
    hand.run("hold_back", {"batch": batch.id})
    assert hand.begin_step(batch.id) == 4
    return batch


def end_the_step(stage: Stage, batch: Staged) -> None:
    hand = stage.hand()
    (row,) = hand.settle([done(item) for item in hand.take(100, batch=batch.id)])
    assert row.step_ended


def test_of_two_that_begin_a_step_one_does(stage: Stage) -> None:
    batch = on_stage(stage, 10, 10)
    end_the_step(stage, batch)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        assert anna.begin_step(batch.id) == 4
        later = stage.meanwhile(bert, lambda: bert.begin_step(batch.id))
        assert later.waits(), "for the batch row"
    assert later.result() == 0
    assert len(bert.take(100, batch=batch.id)) == 4
    assert not stage.broken()


def test_of_two_settles_of_the_last_lines_one_ends_the_step(stage: Stage) -> None:
    batch = on_stage(stage, 10, 10)
    anna, bert = stage.hand(), stage.hand()
    mine, theirs = anna.take(2, batch=batch.id), bert.take(2, batch=batch.id)
    with anna.holding():
        (first,) = anna.settle([done(item) for item in mine])
        later = stage.meanwhile(bert, lambda: bert.settle([done(item) for item in theirs]))
        assert later.waits(), "for the batch row"
    (second,) = later.result()
    assert (first.step_ended, second.step_ended) == (False, True)
    assert bert.begin_step(batch.id) == 4


def test_a_claim_waits_for_no_step_that_begins(stage: Stage) -> None:
    batch = on_stage(stage, 10, 10)
    end_the_step(stage, batch)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        assert anna.begin_step(batch.id) == 4
        later = stage.meanwhile(bert, lambda: bert.take(100))
        assert not later.waits()
        assert later.result() == []
    assert len(bert.take(100)) == 4


@pytest.mark.parametrize("reason", ["cancel", "expire", "pause"])
@pytest.mark.parametrize("first", [True, False], ids=["closed first", "closed second"])
def test_a_batch_that_is_closed_while_a_step_begins_sends_nothing(
    stage: Stage, reason: Literal["cancel", "expire", "pause"], first: bool
) -> None:
    batch = on_stage(stage, 10, 10)
    end_the_step(stage, batch)
    anna, bert = stage.hand(), stage.hand()
    acts: list[Act] = [
        partial(Hand.close, batch=batch.id, reason=reason),
        partial(Hand.begin_step, batch=batch.id),
    ]
    one, other = acts if first else reversed(acts)
    with anna.holding():
        one(anna)
        later = stage.meanwhile(bert, lambda: other(bert))
        assert later.waits(), "for the batch row"
    begun = later.result() if first else None
    later.result()
    assert begun in (None, 0)
    assert bert.take(100) == []
    assert not stage.broken()
    if reason == "pause":
        assert bert.resume(batch.id)
        bert.begin_step(batch.id)
        assert len(bert.take(100)) == 4
    else:
        assert bert.conclude(batch.id)


@pytest.mark.parametrize("first", [True, False], ids=["deleted first", "deleted second"])
def test_a_step_that_begins_while_its_batch_is_deleted_leaves_nothing(stage: Stage, first: bool) -> None:
    """Both lock the spans that are held back, then the batch."""
    batch = stage.batch(5000, settings='{"steps": {"sample": 3}}')
    hand = stage.hand()
    hand.run("hold_back", {"batch": batch.id})
    assert hand.begin_step(batch.id) == 3
    end_the_step(stage, batch)
    assert hand.resume(batch.id)
    anna, bert = stage.hand(), stage.hand()
    acts: list[Act] = [partial(Hand.delete, batch=batch.id), partial(Hand.begin_step, batch=batch.id)]
    one, other = acts if first else reversed(acts)
    with anna.holding():
        assert one(anna)
        later = stage.meanwhile(bert, lambda: other(bert))
        assert later.waits(), "for the spans"
    later.result()
    assert bert.take(100) == []
    bert.drop_deleted_lanes()
    assert stage.left_over() == {}

"""A sample: random lines of a new batch, which run while the rest is paused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus, RunSettings
from batchline.model.ids import new_id
from batchline.store import batches, doctor, forecasts, spans
from batchline.store.batches import NewBatch
from batchline.store.creation import creation
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import LATER, a_file, a_worker, completed, deferred, kill, read, retry, sql, take
from tests.support.executors import Answering
from tests.support.reuse import a_file_of, a_reusing_batch, answer, answer_all
from tests.support.scenes import Stage


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with Stage(database_url) as stage:
        yield stage


async def a_sampled_batch(db: Session, lanes: dict[str, int], lines: int) -> Batch:
    new = NewBatch(new_id(), DEFAULT_TENANT, await a_file(db, lanes), "24h", LATER, RunSettings())
    async with creation(db, new) as creating:
        await creating.create()
        return await creating.draw_sample(lines)


async def drawn(db: Session, batch: Batch) -> list[tuple[int, int]]:
    """Lane and ordinal of each line that was drawn."""
    return [
        (lane, ordinal)
        for lane, ordinal in await sql(
            db,
            """
            SELECT s.lane_id, generate_series(lower(piece), upper(piece) - 1)
            FROM batchline.spans AS s
            CROSS JOIN LATERAL unnest(s.outstanding) AS piece
            WHERE s.batch_id = %(batch)s AND s.available_at = to_timestamp(0)
            """,
            batch=batch.id,
        )
    ]


@pytest.mark.parametrize(("lanes", "lines"), [({"a": 30, "b": 7}, 5), ({"a": 5000, "b": 300}, 40)])
async def test_lines_of_all_lanes_are_drawn_and_each_line_is_there_once(
    db: Session, lanes: dict[str, int], lines: int
) -> None:
    batch = await a_sampled_batch(db, lanes, lines)

    assert (batch.status, batch.paused_by) == (BatchStatus.PAUSED, "sample")
    assert len(set(await drawn(db, batch))) == lines
    assert batch.counts.pending == sum(lanes.values())
    assert (await doctor.examine(db)).findings == ()
    other = await a_sampled_batch(db, {"a": 5000}, 40)
    another = await a_sampled_batch(db, {"a": 5000}, 40)
    ordinals = [sorted(ordinal for _, ordinal in await drawn(db, each)) for each in (other, another)]
    assert ordinals[0] != ordinals[1], "it is random"


async def test_more_lines_than_there_are_is_all_of_them(db: Session) -> None:
    batch = await a_sampled_batch(db, {"a": 3}, 10)
    assert len(await drawn(db, batch)) == 3


@pytest.mark.parametrize(("lines", "every"), [(5, 3), (40, 30), (5, 30), (5, 2)])
async def test_a_sample_is_drawn_from_the_lines_without_a_reused_answer(
    db: Session, lines: int, every: int
) -> None:
    """Lines whose ordinal is a multiple of `every` have none."""
    worker, bodies = a_worker(), [f'{{"q": {n}}}' for n in range(1000)]
    known = [body for n, body in enumerate(bodies) if n % every]
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, known)))

    batch = await a_reusing_batch(db, await a_file_of(db, bodies), sample=lines)

    left = len(bodies) - len(known)
    assert (batch.pause_rule, batch.reused, batch.counts.pending) == ("sample", len(known), left)
    chosen = [ordinal for _, ordinal in await drawn(db, batch)]
    assert len(set(chosen)) == len(chosen) == min(lines, left)
    assert all(ordinal % every == 0 for ordinal in chosen)
    assert (await doctor.examine(db)).findings == ()
    while items := await take(db, worker, scope=Scope(batch_id=batch.id, sample=True)):
        await answer(db, worker, items)
    assert len(await forecasts.sampled(db, batch.id)) == len(chosen), "reused answers say nothing"
    if lines < left:
        assert await batches.resume(db, batch.id)
    sent = await answer_all(db, worker, batch)
    assert sorted([*sent, *(ordinal + 1 for ordinal in chosen)]) == [n + 1 for n in range(0, 1000, every)]


async def test_a_batch_whose_answers_are_all_reused_is_not_paused_for_a_sample(db: Session) -> None:
    worker, bodies = a_worker(), ['{"q": 1}', '{"q": 2}']
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, bodies)))
    batch = await a_reusing_batch(db, await a_file_of(db, bodies), sample=1)
    assert (batch.status, batch.paused_by, batch.reused) == (BatchStatus.FINALIZING, None, 2)
    assert (await doctor.examine(db)).findings == ()


async def test_only_the_sample_runs_until_the_batch_is_resumed(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch, executor = await a_sampled_batch(db, {"m": 500}, 40), Answering()

    async def drain(scope: Scope) -> None:
        settings = WorkerSettings(drain=True, lease=30.0)
        worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, scope)
        async with asyncio.timeout(60):
            await worker.run()

    await drain(Scope())
    assert executor.sent == [], "other workers wait for the decision"
    await drain(Scope(batch_id=batch.id, sample=True))
    assert len(executor.sent) == 40
    assert (await read(db, batch)).completed == 40

    assert await batches.resume(db, batch.id)
    await drain(Scope())
    assert executor.lines == list(range(1, 501)), "nothing was sent twice"
    assert (await read(db, batch)).status is BatchStatus.COMPLETED


async def test_two_workers_share_a_sample_and_a_killed_one_loses_nothing(db: Session) -> None:
    batch = await a_sampled_batch(db, {"m": 100}, 40)
    first, second, scope = a_worker("first"), a_worker("second"), Scope(batch_id=batch.id, sample=True)
    mine = await take(db, first, 16, scope)
    theirs = await take(db, second, 1000, scope)
    assert len(mine) == 16
    assert len({item.ordinal for item in (*mine, *theirs)}) == 40

    await spans.settle(db, second.id, [*map(completed, theirs[1:]), retry(theirs[0])])
    assert await take(db, second, 1000, scope) == [], "what is tried again waits for the rest"
    await kill(db, first)

    assert await batches.resume(db, batch.id)
    rest = await take(db, second, 1000)
    assert len(rest) == 100 - len(theirs) + 1
    await spans.settle(db, second.id, [completed(item) for item in rest])
    assert (await read(db, batch)).completed == 100
    assert (await doctor.examine(db)).findings == ()


@pytest.mark.parametrize("how", ["release", "defer", "kill"])
async def test_an_interrupted_sample_continues_with_the_same_lines(db: Session, how: str) -> None:
    batch = await a_sampled_batch(db, {"a": 5000, "b": 300}, 40)
    chosen = set(await drawn(db, batch))
    first, second, scope = a_worker("first"), a_worker("second"), Scope(batch_id=batch.id, sample=True)
    items = await take(db, first, 1000, scope)
    await spans.settle(db, first.id, [completed(item) for item in items[:10]])
    assert await take(db, second, 1000, scope) == [], "the first worker has them"
    assert await forecasts.sample_left(db, batch.id)

    match how:
        case "release":
            await spans.release(db, first.id, sent=False)
        case "defer":
            await spans.settle(db, first.id, [deferred(item) for item in items[10:]])
        case _:
            await kill(db, first)
    again = await take(db, second, 1000, scope)

    assert {(item.claim.lane_id, item.ordinal) for item in (*items[:10], *again)} == chosen
    assert len(again) == 30
    # Of a killed worker, nobody knows what it has sent.
    assert {item.claim.submission for item in again} == {"interrupted" if how == "kill" else None}
    await spans.settle(db, second.id, [completed(item) for item in again])
    assert await take(db, second, 1000, scope) == [], "the rest of the batch waits"
    assert not await forecasts.sample_left(db, batch.id)
    assert (await read(db, batch)).completed == 40
    assert (await doctor.examine(db)).findings == ()


def test_two_claims_of_a_sample_at_once_share_it(stage: Stage) -> None:
    """The lease of one of them has ended while it was idle, and is renewed by its claim."""
    batch = stage.batch(100)
    stage.db.execute("SELECT batchline.draw_sample_v1(%s, 40)", (batch.id,))
    anna, bert = stage.hand(), stage.hand()
    anna.renew(anna.id, -1.0)

    with anna.holding():
        mine = anna.items(anna.claim_sample(16, batch.id))
        theirs = bert.items(bert.claim_sample(1000, batch.id))
        assert (len(mine), len(theirs)) == (16, 24), "what is locked is skipped"
    assert bert.claim_sample(1000, batch.id) == []
    assert len({item.ordinal for item in (*mine, *theirs)}) == 40
    assert not stage.broken()


PROVIDER = '{"provider": {"name": "openai-background"}}'


def test_a_sample_keeps_to_the_limit_of_tasks_and_its_tasks_are_polled_though_that_is_full(
    stage: Stage,
) -> None:
    batch = stage.batch(100, settings=PROVIDER)
    stage.db.execute("SELECT batchline.draw_sample_v1(%s, 10)", (batch.id,))
    anna = stage.hand()

    first, *rest = anna.items(anna.claim_sample(100, batch.id, max_tasks=3))
    assert len(rest) == 2
    assert anna.claim_sample(100, batch.id, max_tasks=3) == []
    anna.park([first], "task", 0.0)
    (task,) = anna.items(anna.claim_sample(100, batch.id, max_tasks=3))
    assert task.claim.task_id == "task"
    anna.settle([completed(task)])
    assert len(anna.claim_sample(100, batch.id, max_tasks=3)) == 1
    assert not stage.broken()


def test_two_claims_of_a_sample_at_once_keep_to_the_limit_of_tasks_together(stage: Stage) -> None:
    batch = stage.batch(100, settings=PROVIDER)
    stage.db.execute("SELECT batchline.draw_sample_v1(%s, 40)", (batch.id,))
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        assert len(anna.claim_sample(8, batch.id, max_tasks=10)) == 8
        later = stage.meanwhile(bert, lambda: bert.claim_sample(8, batch.id, max_tasks=10))
        assert later.waits()
    assert len(later.result()) == 2
    assert not stage.broken()

"""A sample: random lines of a new batch, which run before the rest is decided on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.batches import creation
from batchline.batches.staging import staged
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus, RunSettings
from batchline.store import batches, doctor, forecasts, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import (
    a_file,
    a_worker,
    completed,
    deferred,
    kill,
    pass_time,
    read,
    retry,
    sql,
    take,
)
from tests.support.executors import Answering
from tests.support.reuse import UPSTREAM, a_file_of, a_reusing_batch, answer, answer_all
from tests.support.scenes import Stage
from tests.support.scenes import completed as done


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with Stage(database_url) as stage:
        yield stage


async def a_sampled_batch(db: Session, lanes: dict[str, int], lines: int) -> Batch:
    return await creation.create(
        db,
        tenant=DEFAULT_TENANT,
        file_id=await a_file(db, lanes),
        window="24h",
        settings=staged(RunSettings(), sample=lines),
    )


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
            WHERE s.batch_id = %(batch)s AND s.available_at <= now()
            """,
            batch=batch.id,
        )
    ]


@pytest.mark.parametrize(("lanes", "lines"), [({"a": 30, "b": 7}, 5), ({"a": 5000, "b": 300}, 40)])
async def test_lines_of_all_lanes_are_drawn_and_each_line_is_there_once(
    db: Session, lanes: dict[str, int], lines: int
) -> None:
    batch = await a_sampled_batch(db, lanes, lines)

    assert (batch.status, batch.step, batch.step_total) == (BatchStatus.IN_PROGRESS, 0, lines)
    assert len(set(await drawn(db, batch))) == lines
    assert batch.counts.pending == sum(lanes.values())
    assert (await doctor.examine(db)).findings == ()
    other = await a_sampled_batch(db, {"a": 5000}, 40)
    another = await a_sampled_batch(db, {"a": 5000}, 40)
    ordinals = [sorted(ordinal for _, ordinal in await drawn(db, each)) for each in (other, another)]
    assert ordinals[0] != ordinals[1], "it is random"


async def test_more_lines_than_there_are_is_all_of_them(db: Session) -> None:
    batch, worker = await a_sampled_batch(db, {"a": 3}, 10), a_worker()
    items = await take(db, worker)
    assert len(items) == 3
    (row,) = await spans.settle(db, worker.id, [completed(item) for item in items])
    assert row.finished
    assert (await read(db, batch)).status is BatchStatus.FINALIZING


@pytest.mark.parametrize(("lines", "every"), [(5, 3), (40, 30), (5, 30), (5, 2)])
async def test_a_sample_is_drawn_from_the_lines_without_a_reused_answer(
    db: Session, lines: int, every: int
) -> None:
    """Lines whose ordinal is a multiple of `every` have none."""
    worker, bodies = a_worker(), [f'{{"q": {n}}}' for n in range(1000)]
    known = [body for n, body in enumerate(bodies) if n % every]
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, known)))

    settings = staged(RunSettings(upstream=UPSTREAM), sample=lines)
    batch = await a_reusing_batch(db, await a_file_of(db, bodies), settings=settings)

    left = len(bodies) - len(known)
    assert (batch.reused, batch.counts.pending) == (len(known), left)
    chosen = [ordinal for _, ordinal in await drawn(db, batch)]
    assert len(set(chosen)) == len(chosen) == min(lines, left)
    assert all(ordinal % every == 0 for ordinal in chosen)
    assert (await doctor.examine(db)).findings == ()
    items = await take(db, worker)
    assert sorted(item.ordinal for item in items) == sorted(chosen)
    await answer(db, worker, items)
    assert len(await forecasts.sampled(db, batch.id)) == len(chosen), "reused answers say nothing"
    if lines < left:
        assert (await read(db, batch)).pause_rule == "sample"
        assert await batches.resume(db, batch.id)
    sent = await answer_all(db, worker, batch)
    assert sorted([*sent, *(ordinal + 1 for ordinal in chosen)]) == [n + 1 for n in range(0, 1000, every)]


async def test_a_batch_whose_answers_are_all_reused_is_not_paused_for_a_sample(db: Session) -> None:
    worker, bodies = a_worker(), ['{"q": 1}', '{"q": 2}']
    await answer_all(db, worker, await a_reusing_batch(db, await a_file_of(db, bodies)))
    settings = staged(RunSettings(upstream=UPSTREAM), sample=1)
    batch = await a_reusing_batch(db, await a_file_of(db, bodies), settings=settings)
    assert (batch.status, batch.paused_by, batch.reused) == (BatchStatus.FINALIZING, None, 2)
    assert (await doctor.examine(db)).findings == ()


async def test_any_worker_runs_the_sample_and_nothing_else_until_the_batch_is_resumed(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch, executor = await a_sampled_batch(db, {"m": 500}, 40), Answering()

    async def drain() -> None:
        settings = WorkerSettings(drain=True, lease=30.0)
        worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, Scope())
        async with asyncio.timeout(60):
            await worker.run()

    await drain()
    assert len(executor.sent) == 40
    now = await read(db, batch)
    assert (now.completed, now.pause_rule) == (40, "sample")
    assert await sql(db, "SELECT type FROM batchline.outbox") == [("batch.paused",)]

    assert await batches.resume(db, batch.id)
    await drain()
    assert executor.lines == list(range(1, 501)), "nothing was sent twice"
    assert (await read(db, batch)).status is BatchStatus.COMPLETED


async def test_a_sample_ends_when_its_last_line_has_ended_after_all_its_attempts(db: Session) -> None:
    batch, first, second = await a_sampled_batch(db, {"m": 100}, 40), a_worker("first"), a_worker("second")
    mine, theirs = await take(db, first, 16), await take(db, second, 1000)
    assert len(mine) == 16
    assert len({item.ordinal for item in (*mine, *theirs)}) == 40

    await spans.settle(db, second.id, [*map(completed, theirs[1:]), retry(theirs[0], 3600.0)])
    await spans.settle(db, first.id, [completed(item) for item in mine])
    assert (await read(db, batch)).pause_rule is None, "a line waits for its next attempt"
    await pass_time(db)
    (again,) = await take(db, second)
    await spans.settle(db, second.id, [completed(again)])
    assert (await read(db, batch)).pause_rule == "sample"
    assert await take(db, second) == []
    assert (await doctor.examine(db)).findings == ()


async def test_a_sample_that_a_user_has_paused_is_decided_on_all_the_same(db: Session) -> None:
    batch, worker = await a_sampled_batch(db, {"m": 100}, 4), a_worker()
    items = await take(db, worker)
    assert await batches.close(db, batch.id, "pause")
    await spans.settle(db, worker.id, [completed(item) for item in items])
    assert (await read(db, batch)).pause_rule == "sample"
    assert (await doctor.examine(db)).findings == ()


@pytest.mark.parametrize("how", ["release", "defer", "kill"])
async def test_an_interrupted_sample_continues_with_the_same_lines(db: Session, how: str) -> None:
    batch = await a_sampled_batch(db, {"a": 5000, "b": 300}, 40)
    chosen = set(await drawn(db, batch))
    first, second = a_worker("first"), a_worker("second")
    items = await take(db, first)
    await spans.settle(db, first.id, [completed(item) for item in items[:10]])
    assert await take(db, second) == [], "the first worker has them"

    match how:
        case "release":
            await spans.release(db, first.id, sent=False)
        case "defer":
            await spans.settle(db, first.id, [deferred(item) for item in items[10:]])
        case _:
            await kill(db, first)
    again = await take(db, second)

    assert {(item.claim.lane_id, item.ordinal) for item in (*items[:10], *again)} == chosen
    assert len(again) == 30
    # Of a killed worker, nobody knows what it has sent.
    assert {item.claim.submission for item in again} == {"interrupted" if how == "kill" else None}
    await spans.settle(db, second.id, [completed(item) for item in again])
    assert await take(db, second) == [], "the rest of the batch waits"
    now = await read(db, batch)
    assert (now.completed, now.pause_rule) == (40, "sample")
    assert (await doctor.examine(db)).findings == ()


PROVIDER = '{"provider": {"name": "openai-background"}, "steps": {"sample": 10}}'


def test_a_sample_keeps_to_the_limit_of_tasks_and_its_tasks_are_polled_though_that_is_full(
    stage: Stage,
) -> None:
    batch, anna = stage.batch(100, settings=PROVIDER), stage.hand()
    anna.run("hold_back", {"batch": batch.id})
    assert anna.begin_step(batch.id) == 10

    first, *rest = anna.items(anna.claim(100, batch=batch.id, max_tasks=3))
    assert len(rest) == 2
    assert anna.claim(100, batch=batch.id, max_tasks=3) == []
    anna.park([first], "task", 0.0)
    (task,) = anna.items(anna.claim(100, batch=batch.id, max_tasks=3))
    assert task.claim.task_id == "task"
    anna.settle([done(task)])
    assert len(anna.items(anna.claim(100, batch=batch.id, max_tasks=3))) == 1
    assert not stage.broken()

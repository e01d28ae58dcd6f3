"""A worker and a simulated provider: items are held, released by the operator, capped, and tried again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchline.batches import deletion
from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.executors.provider import ProviderExecutor
from batchline.files.objects import Objects
from batchline.model import Batch, BatchStatus, ProviderSettings, Recovery, RunSettings
from batchline.store import batches
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.drain import HeldLines
from batchline.worker.producer import ProducerScope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, equals, overrun, pass_time, read, sql, until
from tests.support.processes import Upstream, simulated

PATIENCE = 120.0


def settings_for(upstream: Upstream, recovery: Recovery = Recovery.HOLD, **more: Any) -> RunSettings:
    return RunSettings(upstream.url, provider=ProviderSettings("openai-background", recovery, **more))


async def responses(db: Session, count: int, settings: RunSettings) -> Batch:
    """A batch of background responses."""
    batch = await a_batch(db, count)
    await batches.change_settings(db, batch.id, settings)
    await sql(db, "UPDATE batchline.lanes SET url = '/v1/responses', key = %(key)s", key=settings.upstream)
    await sql(db, 'UPDATE batchline.lines SET body = \'{"model": "m", "input": "hi"}\'')
    return batch


async def drain(url: str, tmp_path: Path, settings: RunSettings, workers: int = 1) -> Sequence[HeldLines]:
    """What the last worker leaves to the operator."""
    held = list[HeldLines]()
    provider, upstream = settings.provider, settings.upstream
    assert provider is not None
    assert upstream is not None

    async def work() -> None:
        upstreams = Upstreams()
        executor = ProviderExecutor(HttpExecutor(upstreams))
        scope = ProducerScope(Scope((upstream,)), 8, upstream, provider.max_tasks)
        worker = Worker(
            url,
            executor,
            Objects.at(tmp_path),
            WorkerSettings(drain=True),
            Scope(),
            WorkerOptions(producers=[scope], upstreams=upstreams, cancel_task=executor.cancel),
        )
        try:
            await worker.run()
            held[:] = worker.held
        finally:
            await executor.close()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    return held


async def states(db: Session) -> dict[str, int]:
    rows = await sql(db, "SELECT state, count(*) FROM batchline.provider_items GROUP BY state")
    return dict(rows)


def accepted(upstream: Upstream) -> int:
    return int(upstream.stats()["tasks"]["accepted"])


async def test_items_whose_answers_were_lost_are_held_until_the_operator_decides(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--keyless", "--lose-rate", "1") as upstream:
        held = settings_for(upstream)
        batch = await responses(db, 5, held)
        await drain(database_url, tmp_path, held)
        assert await states(db) == {"submission_unknown": 5}
        await pass_time(db)
        await drain(database_url, tmp_path, held)
        assert await states(db) == {"submission_unknown": 5}
        assert accepted(upstream) == 5, "nothing was submitted a second time"
        assert (await read(db, batch)).status is BatchStatus.IN_PROGRESS
    with simulated() as upstream:
        chosen = settings_for(upstream, Recovery.RESUBMIT)
        await batches.change_settings(db, batch.id, chosen)
        await sql(db, "UPDATE batchline.lanes SET key = %(key)s", key=upstream.url)
        await pass_time(db)
        await drain(database_url, tmp_path, chosen)
    assert await states(db) == {"succeeded": 5}


async def test_a_drain_ends_when_held_lines_fill_the_limit_of_tasks(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """Fresh lines wait behind the limit, so every poll finds work that no claim returns."""
    with simulated("--keyless", "--lose-rate", "1") as upstream:
        settings = settings_for(upstream, max_tasks=3)
        await responses(db, 10, settings)
        held = await drain(database_url, tmp_path, settings)
        assert await states(db) == {"submission_unknown": 3, "queued": 7}
        assert held == [HeldLines(upstream.url, 3, limit_full=True)]
        assert accepted(upstream) == 3
        # The next one finds the same at once.
        assert await drain(database_url, tmp_path, settings) == held


async def test_a_drain_waits_for_tasks_that_make_room_for_other_lines(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--task", "300") as upstream:
        settings = settings_for(upstream, max_tasks=2)
        await responses(db, 5, settings)
        assert await drain(database_url, tmp_path, settings) == []
        assert await states(db) == {"succeeded": 5}


async def test_a_drain_says_what_is_held_when_the_limit_has_room(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--keyless", "--lose-rate", "1") as upstream:
        settings = settings_for(upstream)
        await responses(db, 2, settings)
        held = await drain(database_url, tmp_path, settings)
        assert held == [HeldLines(upstream.url, 2, limit_full=False)]


@pytest.mark.parametrize(
    ("recovery", "options"),
    [(Recovery.KEY, ()), (Recovery.METADATA, ("--keyless",))],
    ids=["by key", "by metadata"],
)
async def test_a_lost_answer_is_no_second_task(
    database_url: str, db: Session, tmp_path: Path, recovery: Recovery, options: tuple[str, ...]
) -> None:
    with simulated("--lose-rate", "0.5", *options) as upstream:
        settings = settings_for(upstream, recovery, recheck=0.5)
        await responses(db, 40, settings)
        await drain(database_url, tmp_path, settings)
        assert await states(db) == {"succeeded": 40}
        tasks = upstream.stats()["tasks"]
        assert tasks["lost_answers"] > 0
        assert (tasks["accepted"], tasks["keys_with_two_tasks"]) == (40, 0)


async def test_two_workers_together_keep_to_the_limit_of_tasks(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """No task ends before the provider has as many as it may have, so it never has more."""
    with simulated("--task", "3600000") as upstream:
        settings = settings_for(upstream, Recovery.KEY, max_tasks=7)
        await responses(db, 40, settings)
        working = asyncio.create_task(drain(database_url, tmp_path, settings, workers=2))
        while (await states(db)).get("processing") != 7:
            assert not working.done()
        # Both have had the chance to claim more: each asks for tasks that are due, and claims then.
        await until(lambda: asyncio.sleep(0, upstream.stats()["tasks"]["polls"] >= 30))
        assert accepted(upstream) == 7
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_tasks_that_vanish_are_tried_again_and_fail_at_last(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--vanish-rate", "1") as upstream:
        settings = RunSettings(
            upstream.url,
            max_attempts=2,
            provider=ProviderSettings("openai-background", Recovery.KEY, recheck=0.2),
        )
        await responses(db, 3, settings)
        await drain(database_url, tmp_path, settings)
        assert await states(db) == {"failed": 3}
        assert accepted(upstream) == 6, "one task for each attempt"
    rows = await sql(db, "SELECT DISTINCT error_code FROM batchline.retry_attempts")
    assert rows == [("task_vanished",)]


async def test_a_provider_that_limits_the_rate_gets_each_item_once(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--rate-limit", "10", "--task", "100") as upstream:
        settings = RunSettings(
            upstream.url,
            max_attempts=50,
            provider=ProviderSettings("openai-background", Recovery.KEY),
        )
        await responses(db, 60, settings)
        await drain(database_url, tmp_path, settings)
        assert await states(db) == {"succeeded": 60}
        tasks = upstream.stats()["tasks"]
        assert tasks["refused"] > 0
        assert (tasks["accepted"], tasks["keys_with_two_tasks"]) == (60, 0)


@pytest.mark.parametrize("how", [BatchStatus.CANCELLED, BatchStatus.EXPIRED])
async def test_the_tasks_of_a_batch_that_was_ended_are_cancelled_at_the_provider(
    database_url: str, db: Session, tmp_path: Path, how: BatchStatus
) -> None:
    with simulated("--task", "3600000") as upstream:
        settings = settings_for(upstream, Recovery.KEY)
        batch = await responses(db, 20, settings)
        working = asyncio.create_task(drain(database_url, tmp_path, settings))
        await until(lambda: asyncio.sleep(0, accepted(upstream) == 20))
        if how is BatchStatus.CANCELLED:
            await batches.close(db, batch.id, "cancel")
        else:
            await overrun(db, batch.id)
        await working
        assert (await read(db, batch)).status is how
        assert upstream.stats()["tasks"]["cancelled"] == 20
    assert await sql(db, "SELECT count(*) FROM batchline.abandoned_tasks") == [(0,)]


async def test_the_tasks_of_a_running_batch_that_is_deleted_are_cancelled_at_the_provider(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--task", "3600000") as upstream:
        settings = settings_for(upstream, Recovery.KEY)
        batch = await responses(db, 20, settings)
        working = asyncio.create_task(drain(database_url, tmp_path, settings))
        await until(lambda: asyncio.sleep(0, accepted(upstream) == 20))
        await deletion.delete(db, Objects.at(tmp_path), batch, force=True)
        await working
        # The worker may have left before it was notified. The next one finds what is left.
        await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
        await sql(db, "UPDATE batchline.abandoned_tasks SET available_at = now()")
        await drain(database_url, tmp_path, settings)
        assert upstream.stats()["tasks"]["cancelled"] == 20
    assert await sql(db, "SELECT count(*) FROM batchline.abandoned_tasks") == [(0,)]


async def test_a_task_that_cannot_be_cancelled_is_tried_again_later(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated("--task", "3600000") as upstream:
        settings = settings_for(upstream, Recovery.KEY)
        batch = await responses(db, 2, settings)
        working = asyncio.create_task(drain(database_url, tmp_path, settings))
        # The provider has accepted both, and the worker has its answers.
        await until(lambda: equals(states(db), {"processing": 2}))
        upstream.process.kill()
        upstream.process.wait(60)
        await batches.close(db, batch.id, "cancel")
        await working
    found = await sql(db, "SELECT attempts, available_at > now() FROM batchline.abandoned_tasks")
    assert found == [(1, True)] * 2

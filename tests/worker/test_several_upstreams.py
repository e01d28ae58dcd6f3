"""Several upstreams for one model: shares, fail-over, and lines that stay where they may have run."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batchline.cli.routes import UpstreamRoutes
from batchline.config.settings import ServerSettings, UpstreamSettings, WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.executors.routing import RoutingExecutor
from batchline.files.objects import Objects
from batchline.governance.registry import Registry
from batchline.model import Batch
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from batchline.upstreams.retry import Backoff
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, a_worker, kill, read, take, until
from tests.support.noting_upstream import NotingUpstream, answers, noting

AT_ONCE = HttpSettings(retry=Backoff(0.01, 0.02), connect_retry=Backoff(0.01, 0.02))
LINES = 400


def settings_of(name: str, upstream: NotingUpstream, **more: Any) -> UpstreamSettings:
    of = {"models": ("model",), "concurrency": 500, "max_attempts": 100, **more}
    return UpstreamSettings(name, upstream.url, **of)


@asynccontextmanager
async def routing(
    url: str, folder: Path, upstreams: Sequence[UpstreamSettings], http: HttpSettings = AT_ONCE, **more: Any
) -> AsyncIterator[Worker]:
    """A worker as the command has it; with `drain`, until all batches have ended."""
    server, settings = ServerSettings(upstreams=tuple(upstreams)), WorkerSettings(lease=30.0, **more)
    known = Upstreams(http)
    routes = UpstreamRoutes(server, Registry([]), settings, Scope())
    routes.prepare(known)
    executor = RoutingExecutor(server.upstreams, HttpExecutor(known))
    options = WorkerOptions(
        producers=routes.lasting(),
        discovered=routes.discovered(),
        escalations=routes.escalations(),
        upstreams=known,
    )
    worker = Worker(url, executor, Objects.at(folder / "objects"), settings, Scope(), options)
    try:
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            try:
                yield worker
                if settings.drain:
                    await running
            finally:
                worker.stop()
    finally:
        await executor.close()


async def is_complete(db: Session, batch: Batch, lines: int) -> bool:
    now = await read(db, batch)
    return (now.completed, now.failed) == (lines, 0)


async def test_lines_are_shared_by_weight_while_all_have_room(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, LINES)
    async with noting() as one, noting() as two:
        upstreams = [settings_of("one", one, weight=3), settings_of("two", two)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            pass
        assert await is_complete(db, batch, LINES)
        assert sorted(one.lines + two.lines) == list(range(1, LINES + 1)), "each line is sent once"
        assert 0.6 * LINES < len(one.lines) < 0.9 * LINES


async def test_an_upstream_with_room_takes_all_while_the_other_is_full(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def hangs(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        await go_on.wait()
        return await answers(body)

    batch = await a_batch(db, LINES)
    async with noting(hangs) as slow, noting() as fast:
        upstreams = [settings_of("slow", slow, concurrency=2, weight=9), settings_of("fast", fast)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            await fast.until(lambda: len(fast.lines) == LINES - 2)
            go_on.set()
        assert await is_complete(db, batch, LINES)
        assert len(slow.lines) == 2


async def test_lines_of_an_upstream_that_goes_away_run_elsewhere_and_it_takes_part_again(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async with noting() as one, noting() as two:
        await one.stop()
        upstreams = [settings_of("one", one), settings_of("two", two)]
        async with routing(database_url, tmp_path, upstreams):
            batch = await a_batch(db, LINES)
            await two.until(lambda: len(two.lines) == LINES)
            assert one.lines == []
            await one.start()
            while not one.lines:
                more = await a_batch(db, 40)
                await until(partial(is_complete, db, more, 40))
        assert await is_complete(db, batch, LINES)


async def test_without_any_upstream_nothing_is_used_up_and_work_resumes_by_itself(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 20)
    async with noting() as one, noting() as two:
        await one.stop()
        await two.stop()
        upstreams = [settings_of("one", one, max_attempts=1), settings_of("two", two, max_attempts=1)]
        async with routing(database_url, tmp_path, upstreams, drain=True) as worker:

            async def both_are_away() -> bool:
                return all(view.reason for view in worker.upstream_views())

            await until(both_are_away)
            await one.start()
            await two.start()
        assert await is_complete(db, batch, 20)


async def test_an_upstream_of_weight_0_takes_lines_only_while_no_other_is_available(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async with noting() as usual, noting() as spare:
        upstreams = [settings_of("usual", usual), settings_of("spare", spare, weight=0)]
        async with routing(database_url, tmp_path, upstreams):
            await a_batch(db, 50)
            await usual.until(lambda: len(usual.lines) == 50)
            assert spare.lines == []
            await usual.stop()
            await a_batch(db, 50)
            await spare.until(lambda: len(spare.lines) == 50)


@pytest.mark.parametrize("fail_over", [False, True])
async def test_after_a_time_out_a_line_stays_with_its_upstream_unless_the_operator_allows_it(
    database_url: str, db: Session, tmp_path: Path, fail_over: bool
) -> None:
    go_on = asyncio.Event()

    async def hangs(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        await go_on.wait()
        return await answers(body)

    batch = await a_batch(db, 40)
    async with noting(hangs) as hanging, noting() as well:
        upstreams = [
            settings_of("hanging", hanging, timeout=0.3, fail_over_after_timeout=fail_over),
            settings_of("well", well),
        ]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            if not fail_over:
                # Each of its lines has come back to it.
                await hanging.until(
                    lambda: bool(hanging.lines) and min(map(hanging.lines.count, hanging.lines)) > 1
                )
                go_on.set()
        assert await is_complete(db, batch, 40)
        assert hanging.lines
        moved = set(hanging.lines) & set(well.lines)
        assert moved if fail_over else not moved
    go_on.set()


async def test_after_an_error_that_was_answered_a_line_may_run_elsewhere(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async def fails(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 500, {"error": {"message": "no"}}

    batch = await a_batch(db, 40)
    async with noting(fails) as bad, noting() as good:
        upstreams = [settings_of("bad", bad), settings_of("good", good)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            pass
        assert await is_complete(db, batch, 40)
        assert set(bad.lines) & set(good.lines)


async def test_lines_of_a_lost_worker_stay_with_the_upstream_that_it_sent_them_to(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 30)
    dead = a_worker("dead")
    lost = await take(db, dead, 10, Scope(("model",), sender="two"))
    await kill(db, dead)
    async with noting() as one, noting() as two:
        upstreams = [settings_of("one", one, weight=1000), settings_of("two", two)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            pass
        assert await is_complete(db, batch, 30)
        numbers = {item.line_no for item in lost}
        assert numbers <= set(two.lines)
        assert not numbers & set(one.lines)


async def test_an_upstream_gets_its_own_name_for_the_model(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 20)
    async with noting() as one, noting() as two:
        upstreams = [settings_of("one", one, aliases={"model": "org/Model-1"}), settings_of("two", two)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            pass
        assert await is_complete(db, batch, 20)
        assert {body["model"] for body in one.bodies} == {"org/Model-1"}
        assert not any("model" in body for body in two.bodies), "the body of a line is not changed elsewhere"


async def test_lines_of_a_batch_near_its_deadline_are_sent_to_the_upstream_for_escalations(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async with noting() as usual, noting() as late:
        await usual.stop()
        upstreams = [settings_of("usual", usual), settings_of("late", late, escalate_before=7200.0)]
        # With the usual delays, an upstream that is away does not claim lines again and again.
        usual_delays = HttpSettings()
        async with routing(database_url, tmp_path, upstreams, usual_delays, poll_min=0.05, poll_max=0.1):
            far = await a_batch(db, 30, window=4 * 3600.0)
            near = await a_batch(db, 30, window=3600.0)
            await until(partial(is_complete, db, near, 30))
            assert await is_complete(db, far, 0), "its upstream is away, and its deadline is far"
        assert len(late.lines) == 30


async def test_an_upstream_for_escalations_keeps_lines_that_it_may_have_run(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 20)
    dead = a_worker("dead")
    lost = await take(db, dead, 5, Scope(("model",), sender="late"))
    await kill(db, dead)
    async with noting() as usual, noting() as late:
        upstreams = [settings_of("usual", usual), settings_of("late", late, escalate_before=1.0)]
        async with routing(database_url, tmp_path, upstreams, drain=True):
            pass
        assert await is_complete(db, batch, 20)
        assert sorted(late.lines) == sorted(item.line_no for item in lost)

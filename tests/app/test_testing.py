"""The helper for tests of apps: items run in the test's loop, time stands still, databases are empty."""

import asyncio
import os
import re
import subprocess
import tomllib
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest

from batchline import Batchline, Context, Fail, Parked, Retry
from batchline.operations.callbacks import EndedBatch
from batchline.testing import running
from tests.support.processes import PYTHON
from tests.support.repository import ROOT

DAY = 86_400


async def test_items_run_in_the_loop_of_the_test(database_url: str) -> None:
    app, loops = Batchline(), []

    @app.operation
    async def double(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        return 2 * number

    async with running(app, database_url) as run:
        batch = await app.submit(double, range(3))
        assert (await batch.status()).pending == 3
        assert await run.drain() == 3
        assert [result.value async for result in batch.results()] == [0, 2, 4]
        assert (await batch.status()).status == "completed"
    assert loops == [asyncio.get_running_loop()] * 3


async def test_a_retry_waits_until_its_time_has_come(database_url: str) -> None:
    app, attempts = Batchline(), []

    @app.operation
    async def fetch(number: int, ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry("busy", after=30)
        return "found"

    async with running(app, database_url) as run:
        batch = await app.submit(fetch, [1])
        await run.drain()
        await run.advance(29.9)
        await run.drain()
        assert attempts == [1]
        assert (await batch.status()).retrying == 1
        await run.advance(0.1)
        await run.drain()
        assert attempts == [1, 2]
        assert (await batch.status()).completed == 1


async def test_a_backoff_that_ends_at_once_waits_for_the_test(database_url: str) -> None:
    app, attempts = Batchline(), []

    @app.operation(backoff=(0.001, 0.001), max_attempts=2)
    async def fails(number: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("no")

    async with running(app, database_url) as run:
        batch = await app.submit(fails, [1])
        await run.drain()
        assert attempts == [1]
        await run.advance(1)
        await run.drain()
        assert (await batch.status()).failed == 1


async def test_a_parked_item_is_called_again_after_its_delay(database_url: str) -> None:
    app, seen = Batchline(), []

    @app.operation
    async def order(number: int, ctx: Context) -> str | Parked:
        seen.append(ctx.task_id)
        return "done" if ctx.task_id else Parked("task-7", after=5 * DAY)

    async with running(app, database_url) as run:
        batch = await app.submit(order, [1])
        await run.drain()
        await run.advance(5 * DAY - 1)
        assert await run.drain() == 0
        await run.advance(1)
        assert await run.drain() == 1
        assert seen == [None, "task-7"]
        assert [result.value async for result in batch.results()] == ["done"]


async def test_parked_items_may_have_the_same_task_id(database_url: str) -> None:
    app = Batchline()

    @app.operation
    async def order(number: int, ctx: Context) -> str | Parked:
        return ctx.task_id or Parked("export:7", after=DAY)

    async with running(app, database_url) as run:
        batches = [await app.submit(order, [1, 2]), await app.submit(order, [3])]
        await run.drain()
        await run.advance(DAY)
        await run.drain()
        values = [result.value for batch in batches async for result in batch.results()]
        assert values == ["export:7"] * 3


async def test_all_stages_of_a_pipeline_run_in_one_drain(database_url: str) -> None:
    app = Batchline()

    @app.operation
    async def last(number: int) -> int:
        if number == 3:
            raise Fail("odd")
        return number

    @app.operation(emits=[last])
    async def first(number: int, ctx: Context) -> None:
        for each in range(number):
            await ctx.emit(last, each)

    async with running(app, database_url) as run:
        batch = await app.submit(first, [2, 4])
        assert await run.drain() == 8
        status = await batch.status()
        assert (status.completed, status.failed) == (7, 1)
        assert sorted([r.index async for r in batch.results(stage="last") if r.ok]) != []


async def test_what_has_not_run_by_its_deadline_expires(database_url: str) -> None:
    app = Batchline()

    @app.operation
    async def wait(number: int) -> None:
        raise Retry("later", after=100)

    async with running(app, database_url) as run:
        batch = await app.submit(wait, [1], deadline=60)
        await run.drain()
        await run.advance(61)
        await run.drain()
        status = await batch.status()
        assert (status.status, status.expired) == ("expired", 1)


async def test_each_time_of_a_schedule_that_has_come_is_a_batch(database_url: str) -> None:
    app, times, hours = Batchline(), list[datetime](), list[int]()

    @app.operation
    async def report(hour: int) -> None:
        hours.append(hour)

    @app.schedule("0 * * * *", report)
    async def hourly(at: datetime) -> list[int]:
        times.append(at)
        return [at.hour]

    async with running(app, database_url) as run:
        await run.drain()
        assert not times
        await run.advance(3 * 3600)
        await run.drain()
    assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(hours=1)] * 2
    assert hours == [at.hour for at in times]


async def test_a_callback_may_submit_what_runs_in_the_same_drain(database_url: str) -> None:
    app, ran = Batchline(), list[str]()

    @app.operation
    async def second(item: str) -> None:
        ran.append(item)

    @app.operation
    async def first(number: int) -> None: ...

    @app.on_batch_end
    async def follow(batch: EndedBatch) -> None:
        if batch.operation == "first":
            await app.submit(second, [batch.status])

    async with running(app, database_url) as run:
        await app.submit(first, [1])
        await run.drain()
    assert ran == ["completed"]


async def test_an_app_is_where_it_was_afterwards(database_url: str, tmp_path: Path) -> None:
    app = Batchline("postgresql://somewhere/else", data_dir=tmp_path)

    @app.operation
    async def nothing(number: int) -> None: ...

    before = app._core.location
    async with running(app, database_url) as run:
        await app.submit(nothing, [1])
        await run.drain()
    assert app._core.location == before
    assert not os.listdir(tmp_path)


async def test_a_drain_that_does_not_end_says_so(database_url: str) -> None:
    app = Batchline()

    @app.operation
    async def hang(number: int) -> None:
        await asyncio.Event().wait()

    async with running(app, database_url) as run:
        await app.submit(hang, [1])
        with pytest.raises(TimeoutError):
            await run.drain(timeout=0.5)


async def test_time_does_not_go_back(database_url: str) -> None:
    app = Batchline()
    async with running(app, database_url) as run:
        with pytest.raises(ValueError, match="go back"):
            await run.advance(-1)


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert resolve_name(project["entry-points"]["pytest11"]["batchline"])


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "python-testing.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    for name, text in files:
        (tmp_path / name).write_text(text)
    plugins = ["-p", "no:batchline", "-p", "batchline.testing.plugin", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", *plugins, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {name for name, _ in files} == {"shop.py", "test_shop.py"}
    assert "2 passed" in ran.stdout

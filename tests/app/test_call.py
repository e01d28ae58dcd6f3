"""Calls: one item, and its result."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from batchline import Batchline, BatchlineError, Context, ItemFailed
from batchline.model import ids
from batchline.store import stages
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.waiting import eventually

FATAL_APP = """
import os, signal
from batchline import Batchline

app = Batchline()

@app.operation
async def answer(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def connected(db: Session) -> None:
    """Wait until a worker is connected: otherwise a call runs its item in this process."""
    async with asyncio.timeout(120):
        while not await stages.worker_connected(db):  # noqa: ASYNC110 (a fact has no event)
            await asyncio.sleep(0.01)


async def until_nothing_is_expected(app: Batchline) -> None:
    expected = (await app._core.resources()).first_results()._expected
    await eventually("that nothing is looked for", lambda: not expected)


async def test_many_calls_at_once_get_their_own_results(app: Batchline, db: Session) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    @app.operation
    async def negative(number: int) -> int:
        return -number

    async with app.worker():
        await connected(db)
        doubled = [app.call(double, number) for number in range(100)]
        negated = [app.call(negative, number) for number in range(100)]
        results = await asyncio.gather(*doubled, *negated)
    assert results == [2 * number for number in range(100)] + [-number for number in range(100)]
    await until_nothing_is_expected(app)


async def test_without_a_worker_a_call_runs_here(app: Batchline) -> None:
    @app.operation
    async def here(number: int) -> int:
        return os.getpid() + number

    assert await app.call(here, 1) == os.getpid() + 1


async def test_a_call_after_the_last_worker_has_gone_runs_here(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    async with app.worker():
        await connected(db)
        assert await app.call(same, 1) == 1
    assert await app.call(same, 2) == 2


async def test_a_call_finds_its_result_when_no_notification_comes(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    async with app.worker():
        await connected(db)
        assert await app.call(same, 1) == 1
        listening = (await app._core.resources())._listening
        assert listening is not None
        listening.cancel()
        await asyncio.wait([listening])
        assert await app.call(same, 2) == 2


async def test_a_call_ends_before_later_stages_have(app: Batchline, db: Session) -> None:
    gate = asyncio.Event()

    @app.operation
    async def later(number: int) -> int:
        await gate.wait()
        return number

    @app.operation(emits=[later])
    async def first(number: int, ctx: Context) -> int:
        await ctx.emit(later, number)
        return number + 1

    async with app.worker():
        await connected(db)
        assert await app.call(first, 1) == 2
        gate.set()


async def test_a_call_ends_after_its_timeout_and_the_item_still_runs(app: Batchline, db: Session) -> None:
    gate, started, ran = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.operation
    async def gated(number: int) -> int:
        started.set()
        await gate.wait()
        ran.set()
        return number

    async with app.worker():
        await connected(db)
        timeout = 0.1
        # On a slow machine, the time may be over before the item was submitted.
        while not started.is_set():
            with pytest.raises(TimeoutError):
                await app.call(gated, 1, timeout=timeout)
            timeout *= 2
        gate.set()
        await ran.wait()
    await until_nothing_is_expected(app)


async def test_a_call_of_a_cancelled_batch_fails(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    async with app.worker(operations=[other]):
        await connected(db)
        call = asyncio.create_task(app.call(same, 1))
        async with asyncio.timeout(120):
            while not (rows := await sql(db, "SELECT id FROM batchline.batches")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        batch = await app.batch(ids.show(ids.BATCH, rows[0][0]))
        await batch.cancel()
        with pytest.raises(ItemFailed) as failed:
            await call
    assert failed.value.code == "batch_cancelled"


async def test_a_closed_app_ends_its_calls(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    location = app._core.location
    caller = Batchline(location.database, data_dir=location.data_dir)
    operation: Any = caller.operation(name="same")(same.function)
    async with app.worker(operations=[other]):
        await connected(db)
        call = asyncio.create_task(caller.call(operation, 1))
        await eventually("that the call waits for a worker", lambda: caller._core.worker_seen)
        await caller.close()
        with pytest.raises(BatchlineError, match="closed before this call"):
            await call


async def test_a_call_whose_worker_dies_is_answered_by_the_next(
    app: Batchline, db: Session, database_url: str, tmp_path: Path
) -> None:
    @app.operation
    async def answer(number: int) -> int:
        return number + 1

    (tmp_path / "fatal_app.py").write_text(FATAL_APP)
    command = [sys.executable, "-m", "batchline", "worker", "fatal_app:app", "--quiet"]
    environment = {
        **os.environ,
        "BATCHLINE_DATABASE_URL": database_url,
        "BATCHLINE_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": str(tmp_path),
    }
    fatal = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment)
    try:
        await connected(db)
        call = asyncio.create_task(app.call(answer, 1))
        assert await asyncio.wait_for(fatal.wait(), 120) == -signal.SIGKILL
    finally:
        if fatal.returncode is None:
            fatal.kill()
            await fatal.wait()
    async with app.worker():
        assert await call == 2

"""Workers of an app in this process."""

import asyncio
from typing import Any

import pytest

from batchline import Batchline, InvalidApp
from batchline.store import stages
from batchline.store.session import Session
from tests.support.waiting import eventually


async def test_a_worker_that_drains_ends_when_nothing_is_left(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, range(100))
    await app.worker(drain=True).serve()
    assert (await batch.status()).status == "completed"


async def test_a_stopped_worker_finishes_what_runs(app: Batchline) -> None:
    gate, running = asyncio.Event(), 0

    @app.operation(concurrency=2)
    async def gated(number: int) -> int:
        nonlocal running
        running += 1
        await gate.wait()
        return number

    batch = await app.submit(gated, range(5))
    worker = app.worker()
    serving = asyncio.create_task(worker.serve())
    await eventually("two items that run", lambda: running == 2)
    worker.stop()
    gate.set()
    await serving
    progress = await batch.status()
    assert (progress.completed, progress.pending, running) == (2, 3, 2)


async def test_a_worker_that_was_stopped_before_its_start_ends_at_once(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    worker = app.worker()
    worker.stop()
    await worker.serve()
    assert (await batch.status()).pending == 1


async def test_a_worker_runs_only_the_operations_that_it_is_given(app: Batchline) -> None:
    @app.operation
    async def mine(number: int) -> int:
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    ours, theirs = await app.submit(mine, [1]), await app.submit(other, [1])
    await app.worker(operations=["mine"], drain=True).serve()
    assert (await ours.status()).completed == 1
    assert (await theirs.status()).pending == 1


async def test_concurrency_limits_all_operations_together(app: Batchline) -> None:
    at_once, max_at_once = 0, 0

    async def count(number: int) -> int:
        nonlocal at_once, max_at_once
        at_once += 1
        max_at_once = max(max_at_once, at_once)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_once -= 1
        return number

    first = app.operation(name="first")(count)
    second = app.operation(name="second")(count)
    batches = [await app.submit(first, range(200)), await app.submit(second, range(200))]
    await app.worker(concurrency=3, drain=True).serve()
    assert [(await batch.status()).completed for batch in batches] == [200, 200]
    assert max_at_once == 3


async def test_other_processes_see_that_a_worker_is_connected(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    assert not await stages.worker_connected(db)
    # A process that works on its own batch does not count.
    assert await app.amap(same, [1]) == [1]
    async with app.worker():
        await app.call(same, 1)
        assert await stages.worker_connected(db)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"operations": ["nothing"]}, InvalidApp, "no operation 'nothing'"),
        ({"concurrency": 0}, ValueError, "at least 1"),
        ({"lease": 0.1}, ValueError, "lease"),
    ],
)
async def test_wrong_keywords_are_refused(
    app: Batchline, keywords: Any, error: type[Exception], message: str
) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    with pytest.raises(error, match=message):
        app.worker(**keywords)


async def test_an_app_without_operations_has_no_worker(app: Batchline) -> None:
    with pytest.raises(InvalidApp, match="no operations"):
        await app.worker().serve()


async def test_a_cycle_of_stages_is_refused_when_a_worker_starts(app: Batchline) -> None:
    @app.operation(emits=["second"])
    async def first(number: int) -> int:
        return number

    @app.operation(emits=["first"])
    async def second(number: int) -> int:
        return number

    with pytest.raises(InvalidApp, match="cycle"):
        await app.worker().serve()


async def test_an_error_in_the_block_of_a_worker_is_not_hidden(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    with pytest.raises(KeyError):
        async with app.worker():
            raise KeyError

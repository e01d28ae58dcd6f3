"""What can be done with a batch that was submitted."""

import asyncio
import logging

import pytest

from batchline import Batchline, BatchlineError, DatabaseUnavailable, Fail
from batchline.app import worker_watch
from batchline.store.errors import StoreUnusable
from batchline.worker.worker import Worker
from tests.support.waiting import eventually


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits looks for workers each time, and does not wait for one to come back."""
    monkeypatch.setattr(worker_watch, "_ABSENT", 0.0)
    monkeypatch.setattr(worker_watch, "LOOK_EVERY", 0.0)


async def test_without_a_worker_the_items_run_here_and_the_log_says_so(
    app: Batchline, caplog: pytest.LogCaptureFixture
) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    with caplog.at_level(logging.INFO, "batchline"):
        await (await app.submit(same, [1])).wait()
    assert "no worker of a Python app is connected" in caplog.text


async def test_with_a_worker_nothing_runs_here(app: Batchline, caplog: pytest.LogCaptureFixture) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    with caplog.at_level(logging.INFO, "batchline"):
        async with app.worker():
            assert await app.call(same, 0, timeout=60) == 0
            caplog.clear()
            await (await app.submit(same, [1])).wait()
    assert "no worker of a Python app" not in caplog.text


async def test_waiting_ends_after_the_timeout(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    with pytest.raises(TimeoutError):
        await batch.wait(timeout=0.1, here=False)
    assert (await batch.status()).pending == 1
    await batch.wait()


async def test_if_the_last_worker_goes_away_the_items_run_here(
    app: Batchline, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    running, gate = asyncio.Event(), asyncio.Event()

    @app.operation(concurrency=1)
    async def gated(number: int) -> int:
        running.set()
        await gate.wait()
        return number

    batch = await app.submit(gated, range(3))
    worker = app.worker()
    async with worker:
        await running.wait()
        waiting = asyncio.create_task(batch.wait())
        await eventually("a wait that knows of the worker", lambda: app._core.worker_seen)
        worker.stop()
        gate.set()
    assert (await waiting).completed == 3
    assert "the last worker of a Python app has gone" in caplog.text
    assert "so the items run in this process" in caplog.text


async def test_if_the_last_worker_goes_away_a_call_runs_its_item_here(
    app: Batchline, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    running, gate = asyncio.Event(), asyncio.Event()

    @app.operation(concurrency=1)
    async def gated(number: int) -> int:
        running.set()
        await gate.wait()
        return number

    batch = await app.submit(gated, [1])
    worker = app.worker()
    async with worker:
        await running.wait()
        # The worker runs another item, and leaves before it takes this one.
        called = asyncio.create_task(app.call(gated, 2))
        await eventually("a call that knows of the worker", lambda: app._core.worker_seen)
        worker.stop()
        gate.set()
    assert await called == 2
    assert "the last worker of a Python app has gone" in caplog.text
    await batch.wait()


async def test_whoever_waits_for_a_worker_is_told_that_there_is_none_and_goes_on(
    app: Batchline, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    waiting = asyncio.create_task(batch.wait(here=False))
    await eventually("a warning", lambda: "no worker of a Python app is connected; waiting" in caplog.text)
    assert not waiting.done()
    async with app.worker():
        assert (await waiting).completed == 1


async def test_a_wait_that_ran_the_items_says_how_to_continue_when_it_is_cancelled(
    app: Batchline, caplog: pytest.LogCaptureFixture
) -> None:
    running, gate = asyncio.Event(), asyncio.Event()

    @app.operation
    async def gated(number: int) -> int:
        running.set()
        await gate.wait()
        return number

    batch = await app.submit(gated, [1])
    waiting = asyncio.create_task(batch.wait())
    await running.wait()
    waiting.cancel()
    advice = f'continue with app.sync.batch("{batch.id}").wait()'
    await eventually("the advice, while the item runs", lambda: advice in caplog.text)
    gate.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_an_error_of_the_worker_while_it_stops_is_raised(
    app: Batchline, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    ended = Worker.run

    async def fails_at_the_end(worker: Worker) -> None:
        await ended(worker)
        raise StoreUnusable("the tables do not match")

    monkeypatch.setattr(Worker, "run", fails_at_the_end)
    batch = await app.submit(double, [1, 2])
    with pytest.raises(DatabaseUnavailable, match="the tables do not match"):
        await batch.wait()


async def test_a_batch_is_found_by_its_id(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    await (await app.batch(batch.id)).wait()
    assert (await batch.status()).completed == 1
    for wrong in ("batch_" + "0" * 32, "nothing"):
        with pytest.raises(LookupError):
            await app.batch(wrong)


async def test_a_batch_of_another_tenant_is_not_found(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    location = app._core.location
    async with Batchline(location.database, data_dir=location.data_dir, tenant="other") as other:
        with pytest.raises(LookupError):
            await other.batch(batch.id)


async def test_a_paused_batch_runs_after_it_is_resumed(app: Batchline) -> None:
    ran = []

    @app.operation
    async def note(number: int) -> int:
        ran.append(number)
        return number

    batch = await app.submit(note, [1])
    await batch.pause()
    await batch.pause()
    async with app.worker():
        await app.call(note, 0)
        assert (await batch.status()).status == "paused"
        assert ran == [0]
        await batch.resume()
        await batch.wait()
    assert ran == [0, 1]


async def test_acts_on_an_ended_batch_are_refused_with_its_status(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    with pytest.raises(BatchlineError, match="in_progress and has not ended"):
        await batch.delete()
    await batch.wait()
    for act in (batch.cancel, batch.pause, batch.resume):
        with pytest.raises(BatchlineError, match="it is completed"):
            await act()


async def test_failed_items_run_again(app: Batchline) -> None:
    works = False

    @app.operation(max_attempts=1)
    async def flaky(number: int) -> int:
        if number and not works:
            raise Fail("not yet")
        return number

    batch = await app.submit(flaky, [0, 1, 2])
    assert (await batch.wait()).failed == 2
    works = True
    assert await batch.retry() == 2
    assert (await batch.wait()).completed == 3
    assert await batch.retry() == 0
    assert [result.value async for result in batch.results()] == [0, 1, 2]


async def test_cancelled_items_run_again(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, range(3))
    await batch.cancel()
    await batch.cancel()
    await batch.wait()
    assert await batch.retry(unrun=False) == 0
    assert await batch.retry() == 3
    assert (await batch.wait()).completed == 3


async def test_progress_shows_what_runs_and_what_waits(app: Batchline) -> None:
    gate, running = asyncio.Event(), 0

    @app.operation(concurrency=2)
    async def gated(number: int) -> int:
        nonlocal running
        running += 1
        await gate.wait()
        return number

    batch = await app.submit(gated, range(10), concurrency=2)
    async with app.worker():
        await eventually("two running items", lambda: running == 2)
        progress = await batch.status()
        assert (progress.total, progress.completed) == (10, 0)
        assert progress.pending + progress.running == 10
        assert progress.stages["gated"].running == progress.running >= 2
        gate.set()
        await batch.wait()


async def test_a_bar_shows_the_progress(app: Batchline, capsys: pytest.CaptureFixture[str]) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, range(10))
    await batch.wait(progress=True)
    displayed = capsys.readouterr()
    assert "same" in displayed.err
    assert "10/10" in displayed.err
    assert displayed.out == ""


async def test_a_call_fails_with_the_error_of_its_item(app: Batchline) -> None:
    @app.operation(max_attempts=1)
    async def refusing(number: int) -> int:
        raise Fail("no", code="refused")

    with pytest.raises(BatchlineError, match="refused"):
        await app.call(refusing, 1)

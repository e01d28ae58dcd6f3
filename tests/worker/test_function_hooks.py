"""Callbacks of Python apps: deliveries of ended batches to functions of this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batchline.hooks.function import FunctionHook
from batchline.hooks.hook import Hooks
from batchline.model import Batch
from batchline.model.ids import BATCH, show
from batchline.operations.callbacks import EndedBatch, OperationCallback, make_callback
from batchline.store import hooks
from batchline.store.hooks import HookDelivery
from batchline.store.session import Session
from batchline.worker.hook_runner import HookRunner
from tests.support.builders import sql
from tests.support.hooks import fan_out
from tests.support.waiting import eventually
from tests.support.webhooks import an_ended_batch

PATIENCE = 120.0
REPORT = "python:report"


class Callback:
    """Notes its calls."""

    def __init__(self, act: Callable[[EndedBatch], Awaitable[None]] | None = None) -> None:
        self.got: list[EndedBatch] = []
        self._act = act

    def hook(self, url: str = REPORT, name: str = "ended") -> FunctionHook:
        async def function(batch: EndedBatch) -> None:
            self.got.append(batch)
            if self._act is not None:
                await self._act(batch)

        return FunctionHook(OperationCallback(url, make_callback(function, name=name)))


@asynccontextmanager
async def running(db: Session, *each: FunctionHook, timeout: float = 60.0) -> AsyncIterator[HookRunner]:
    runner = HookRunner(db, Hooks(each, timeout))
    await runner.register()
    task = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield runner
    finally:
        task.cancel()
        await asyncio.wait([task])


async def ended(db: Session, url: str | None = REPORT) -> Batch:
    """A batch of this operation that has ended, and its event."""
    batch = await an_ended_batch(db)
    await sql(db, "UPDATE batchline.batches SET endpoint = %(url)s WHERE id = %(id)s", url=url, id=batch.id)
    return batch


async def deliver(runner: HookRunner) -> None:
    runner.wake()
    await runner.idle.wait()


async def delivery(db: Session) -> HookDelivery:
    (found,) = await hooks.deliveries(db, limit=10)
    return found


async def test_a_callback_gets_the_batch_that_has_ended(db: Session) -> None:
    callback = Callback()
    async with running(db, callback.hook()) as runner:
        batch = await ended(db)
        metadata = 'UPDATE batchline.batches SET metadata = \'{"day": "monday"}\''
        await sql(db, metadata)
        await fan_out(db)
        for _ in range(2):
            await deliver(runner)
    (got,) = callback.got
    assert (got.id, got.operation, got.status) == (show(BATCH, batch.id), "report", "completed")
    assert (got.counts.total, got.counts.completed) == (batch.total, batch.total)
    assert (got.metadata, got.attempt) == ({"day": "monday"}, 1)
    assert (await delivery(db)).state == "delivered"


async def test_a_callback_gets_batches_of_its_operation_only(db: Session) -> None:
    callback = Callback()
    async with running(db, callback.hook()) as runner:
        await ended(db, "python:other")
        await ended(db, None)
        mine = await ended(db)
        assert await fan_out(db) == 1, "the others have no delivery at all"
        await deliver(runner)
    assert [got.id for got in callback.got] == [show(BATCH, mine.id)]


async def test_a_delivery_of_another_operation_is_not_called(db: Session) -> None:
    """A worker of an older version makes deliveries of all batches."""
    callback = Callback()
    async with running(db, callback.hook()) as runner:
        batch = await ended(db, "python:other")
        await hooks.request(db, [callback.hook().name], batch.id)
        await deliver(runner)
    assert callback.got == []
    assert (await delivery(db)).state == "delivered"


async def test_a_callback_that_raises_is_called_again_after_a_delay(db: Session) -> None:
    async def fail_once(batch: EndedBatch) -> None:
        if batch.attempt == 1:
            raise ValueError("not yet")

    callback = Callback(fail_once)
    async with running(db, callback.hook()) as runner:
        await ended(db)
        await fan_out(db)
        await deliver(runner)
        failed = await delivery(db)
        assert (failed.state, failed.last_error) == ("waiting", "ValueError: not yet")
        await sql(db, "UPDATE batchline.hook_deliveries SET available_at = now()")
        await deliver(runner)
    assert [got.attempt for got in callback.got] == [1, 2]
    assert (await delivery(db)).state == "delivered"


@pytest.mark.parametrize("error", [SystemExit("3"), asyncio.CancelledError("3"), ValueError("3")])
async def test_nothing_that_a_callback_raises_ends_its_worker(db: Session, error: BaseException) -> None:
    async def leave(batch: EndedBatch) -> None:
        raise error

    async with running(db, Callback(leave).hook()) as runner:
        await ended(db)
        await fan_out(db)
        await deliver(runner)
        failed = await delivery(db)
    assert (failed.state, failed.last_error) == ("waiting", f"{type(error).__name__}: 3")


async def test_a_callback_that_hangs_is_ended_and_delays_no_other(db: Session) -> None:
    async def hang(batch: EndedBatch) -> None:
        await asyncio.Event().wait()

    slow, quick = Callback(hang), Callback()
    async with running(db, slow.hook(name="slow"), quick.hook(name="quick"), timeout=2.0) as runner:
        await ended(db)
        await fan_out(db)
        await deliver(runner)
    found = {each.hook: each.last_error for each in await hooks.deliveries(db, limit=10)}
    assert found == {f"{REPORT}/slow": "it did not end within 2 s", f"{REPORT}/quick": None}
    assert len(quick.got) == 1


async def test_a_worker_that_dies_in_a_callback_leaves_it_to_the_next(db: Session, database_url: str) -> None:
    async def hang(batch: EndedBatch) -> None:
        await asyncio.Event().wait()

    first, second = Callback(hang), Callback()
    async with Session(database_url, "first") as session, running(session, first.hook()) as runner:
        await ended(db)
        await fan_out(db)
        runner.wake()
        await eventually("the first call", lambda: first.got)
    async with running(db, second.hook()) as runner:
        await deliver(runner)
        assert second.got == [], "the lease of the first has not ended"
        await sql(db, "UPDATE batchline.hook_deliveries SET available_at = now()")
        await deliver(runner)
    assert [got.attempt for got in second.got] == [2]

"""A worker of several operations hears of a batch: one producer claims it, and the others leave it."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from batchline import Batchline
from batchline.app.app_worker import AppWorker
from batchline.config.settings import WorkerSettings
from batchline.store import spans
from tests.support.waiting import LIMIT, eventually

# Longer than a test may take: no poll finds what a notification was about.
RARE = WorkerSettings(poll_min=10 * LIMIT, poll_max=10 * LIMIT)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The batch of each look of a producer at a batch that was announced."""
    true_claim_new, batches = spans.claim_new, list[UUID]()

    async def claim_new(session: Any, worker: Any, scope: Any, batch_id: UUID, limit: int) -> Any:
        batches.append(batch_id)
        return await true_claim_new(session, worker, scope, batch_id, limit)

    monkeypatch.setattr(spans, "claim_new", claim_new)
    return batches


async def until_idle(worker: AppWorker) -> None:
    def idle() -> bool:
        running = worker._worker
        return running is not None and all(claimer.idle.is_set() for claimer in running.producers.claimers)

    await eventually("that nothing is left to claim", idle)


async def test_only_one_producer_looks_at_a_batch_of_its_operation(app: Batchline, looks: list[UUID]) -> None:
    @app.operation
    async def first(number: int) -> int:
        return number

    @app.operation
    async def second(number: int) -> int:
        return -number

    async with app.worker().configured(RARE) as worker, asyncio.timeout(LIMIT):
        # A worker that hears is connected, and has looked at everything once.
        while not looks:
            await (await app.submit(first, [0])).wait(here=False)
            await until_idle(worker)
        looks.clear()
        batch = await app.submit(first, [1])
        await batch.wait(here=False)
        assert looks == [batch.uuid]
        await until_idle(worker)
        assert await app.call(second, 2) == -2


async def test_a_batch_that_is_resumed_is_claimed_again(app: Batchline) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    @app.operation
    async def gated(number: int) -> int:
        started.set()
        await gate.wait()
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    async with app.worker().configured(RARE) as worker, asyncio.timeout(LIMIT):
        try:
            await until_idle(worker)
            batch = await app.submit(gated, [1, 2, 3], concurrency=1)
            await started.wait()
            await batch.pause()
        finally:
            gate.set()
        await until_idle(worker)
        await batch.resume()
        assert (await batch.wait(here=False)).completed == 3

"""A worker follows a change of a batch that it works on, with and without notifications."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.governance import batch_acts
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.model import DEFAULT_TENANT, Batch, BatchChange, Item, Role, Verdict
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.listener import Listener
from batchline.worker.worker import Worker
from tests.support.builders import a_batch, read, until
from tests.support.executors import Answering
from tests.support.governance import some_rules

EMIL = Actor(DEFAULT_TENANT, "emil", Role.ADMIN)
SETTINGS = WorkerSettings(concurrency=6, lease=30.0, poll_min=0.05, poll_max=0.1)


class Paced(Answering):
    """Answers as many items as it is permitted, and counts what is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.in_flight: Counter[UUID] = Counter()
        self.changed = asyncio.Event()

    async def run(self, item: Item) -> Verdict:
        batch_id = item.claim.batch_id
        self.in_flight[batch_id] += 1
        self.changed.set()
        await self.permits.acquire()
        self.in_flight[batch_id] -= 1
        self.changed.set()
        return await super().run(item)

    def permit(self, count: int) -> None:
        for _ in range(count):
            self.permits.release()

    async def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            self.changed.clear()
            await self.changed.wait()


async def change(db: Session, batch: Batch, **values: int | None) -> None:
    act = BatchAct(ActKind.CHANGE, change=BatchChange(**values))  # type: ignore[arg-type]
    await batch_acts.perform(some_rules(), db, EMIL, batch.id, act)


def a_worker(url: str, executor: Paced, folder: Path, scope: Scope) -> Worker:
    return Worker(url, executor, Objects.at(folder / "objects"), SETTINGS, scope)


@pytest.fixture(params=["notified", "polling"])
def _listening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "polling":

        async def deaf(self: Listener) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(Listener, "run", deaf)


@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("alone", [True, False], ids=["run", "worker"])
async def test_a_new_concurrency_takes_effect_while_all_slots_are_busy(
    database_url: str, db: Session, tmp_path: Path, alone: bool
) -> None:
    batch, executor = await a_batch(db, 100), Paced()
    await change(db, batch, concurrency=1)
    worker = a_worker(database_url, executor, tmp_path, Scope(batch_id=batch.id if alone else None))

    def in_flight() -> int:
        return executor.in_flight[batch.id]

    async def knows_two() -> bool:
        return worker.producers.batch_limits() == {batch.id: 2}

    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until(lambda: in_flight() == 1)
        # The one request does not end meanwhile.
        await change(db, batch, concurrency=4)
        await executor.until(lambda: in_flight() == 4)
        await change(db, batch, concurrency=2)
        await until(knows_two)
        executor.permit(2)
        await executor.until(lambda: len(executor.sent) == 2 and in_flight() == 2)
        await change(db, batch, concurrency=None)
        await executor.until(lambda: in_flight() == SETTINGS.concurrency)
        if alone:
            # It has nothing else to do, and may send more than it was started with.
            await change(db, batch, concurrency=9)
            await executor.until(lambda: in_flight() == 9)
        executor.permit(1000)
        worker.stop()


async def test_a_limited_batch_leaves_the_other_slots_to_others(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    first, second, executor = await a_batch(db, 50, window=60), await a_batch(db, 50), Paced()
    await change(db, first, concurrency=2)
    worker = a_worker(database_url, executor, tmp_path, Scope())
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until(lambda: executor.in_flight == {first.id: 2, second.id: 4})
        executor.permit(1000)
        await executor.until(lambda: len(executor.sent) == 100)
        worker.stop()
    assert (await read(db, first)).completed == 50


async def test_the_next_requests_are_those_of_the_batch_with_the_higher_priority(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    first, second, executor = await a_batch(db, 50, window=60), await a_batch(db, 50), Paced()
    worker = a_worker(database_url, executor, tmp_path, Scope())
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until(lambda: executor.in_flight[first.id] == SETTINGS.concurrency)
        await change(db, second, priority=1)
        # What was claimed before goes out first.
        executor.permit(30)
        await executor.until(lambda: executor.in_flight[second.id] == SETTINGS.concurrency)
        executor.permit(1000)
        worker.stop()

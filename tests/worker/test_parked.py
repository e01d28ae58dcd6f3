"""A parked item waits under its task id. It comes back with that id, or ends with its batch."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.files.objects import Objects
from batchline.model import Batch, BatchStatus, Completed, Deferred, Item, TaskParked, Verdict
from batchline.store import batches, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import LATER, a_batch, a_worker, overrun, read, sql, take, until

PATIENCE = 120.0


class Provider(Executor):
    """Accepts each item as a task, then says what `ask` says of the task."""

    def __init__(self, ask: Callable[[Item], Verdict] | None = None, *, delay: float = 0.0) -> None:
        self._ask = ask or completed
        self._delay = delay
        self.accepted: list[int] = []
        self.requested: list[str] = []

    async def run(self, item: Item) -> Verdict:
        if item.claim.task_id is None:
            self.accepted.append(item.line_no)
            return TaskParked(item, f"task-{item.line_no}", self._delay)
        self.requested.append(item.claim.task_id)
        return self._ask(item)


def completed(item: Item) -> Completed:
    return Completed(item, 200, answered_line(item, 200, item.claim.task_id or "", b"{}"))


async def work(url: str, tmp_path: Path, executor: Executor, settings: WorkerSettings) -> None:
    async with asyncio.timeout(PATIENCE):
        await Worker(url, executor, Objects.at(tmp_path), settings, Scope()).run()


async def tasks(db: Session) -> list[tuple[str | None, int]]:
    rows = await sql(
        db, "SELECT task_id, attempt FROM batchline.spans WHERE worker_id IS NULL ORDER BY task_id"
    )
    return [(task_id, attempt) for task_id, attempt in rows]


async def test_a_parked_item_is_run_again_with_its_task_and_sent_once(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    provider = Provider()
    batch = await a_batch(db, 5)
    await work(database_url, tmp_path, provider, WorkerSettings(drain=True))
    ended = await read(db, batch)
    assert (ended.status, ended.completed) == (BatchStatus.COMPLETED, 5)
    assert sorted(provider.accepted) == [1, 2, 3, 4, 5]
    assert sorted(provider.requested) == [f"task-{line_no}" for line_no in range(1, 6)]


async def test_a_task_that_still_runs_is_polled_again(database_url: str, db: Session, tmp_path: Path) -> None:
    provider = Provider(
        lambda item: completed(item) if len(provider.requested) > 2 else TaskParked(item, "task-1", 0.0)
    )
    batch = await a_batch(db, 1)
    await work(database_url, tmp_path, provider, WorkerSettings(drain=True))
    assert (await read(db, batch)).completed == 1
    assert provider.accepted == [1]
    assert provider.requested == ["task-1"] * 3


async def test_an_item_that_is_given_back_keeps_its_task(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    provider = Provider(lambda item: Deferred(item, LATER))
    await a_batch(db, 1)
    await work(database_url, tmp_path, provider, WorkerSettings(drain=True))
    assert await tasks(db) == [("task-1", 1)]
    assert provider.requested == ["task-1"]


async def test_one_task_id_belongs_to_one_item(database_url: str, db: Session, tmp_path: Path) -> None:
    """The second item would replace the first: it fails, and says why."""

    class Confused(Provider):
        async def run(self, item: Item) -> Verdict:
            return TaskParked(item, "task-1", LATER)

    await a_batch(db, 2)
    await work(database_url, tmp_path, Confused(), WorkerSettings(drain=True))
    assert await tasks(db) == [("task-1", 1)]
    ((output,),) = await sql(db, "SELECT output FROM batchline.results")
    assert "another item is parked as task 'task-1'" in output


@pytest.mark.parametrize("how", [BatchStatus.CANCELLED, BatchStatus.EXPIRED])
async def test_a_batch_with_parked_items_can_be_ended(
    database_url: str, db: Session, tmp_path: Path, how: BatchStatus
) -> None:
    batch = await a_batch(db, 3)
    provider = Provider(delay=LATER)
    await work(database_url, tmp_path, provider, WorkerSettings(drain=True))
    assert [task for task, _ in await tasks(db)] == ["task-1", "task-2", "task-3"]
    if how is BatchStatus.CANCELLED:
        await batches.close(db, batch.id, "cancel")
    else:
        await overrun(db, batch.id)
    await work(database_url, tmp_path, provider, WorkerSettings(drain=True))
    assert provider.requested == []
    ended = await read(db, batch)
    assert (ended.status, ended.completed, ended.failed) == (how, 0, 0)


async def test_parking_in_a_batch_that_is_being_cancelled_lets_it_end_at_once(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """While items are run, the batch cannot be concluded; the settle that parks them concludes it."""

    class Slow(Provider):
        def __init__(self) -> None:
            super().__init__(delay=LATER)
            self.go_on = asyncio.Event()

        async def run(self, item: Item) -> Verdict:
            verdict = await super().run(item)
            await self.go_on.wait()
            return verdict

    async def ended(db: Session, batch: Batch) -> bool:
        return (await read(db, batch)).status is BatchStatus.CANCELLED

    batch, provider = await a_batch(db, 1), Slow()
    worker = Worker(database_url, provider, Objects.at(tmp_path), WorkerSettings(), Scope())
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await until(lambda: asyncio.sleep(0, provider.accepted))
        await batches.close(db, batch.id, "cancel")
        provider.go_on.set()
        await until(lambda: ended(db, batch))
        worker.stop()


async def test_a_settle_says_that_the_batch_of_a_parked_item_is_closing(db: Session) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    first, second = await take(db, worker)
    (before,) = await spans.settle(db, worker.id, [TaskParked(first, "a", LATER)])
    await batches.close(db, batch.id, "cancel")
    (after,) = await spans.settle(db, worker.id, [TaskParked(second, "b", LATER)])
    assert (before.closing, after.closing) == (False, True)

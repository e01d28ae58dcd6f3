"""A batch that fails too often is paused once, however many workers run it, and its buffered lines stay."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus, Failed, Item, RunSettings, Verdict
from batchline.model.ids import new_id
from batchline.store import batches, doctor, failures
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import LATER, a_file, read, sql
from tests.support.executors import Answering
from tests.support.waiting import LIMIT

LINES = 2000
CONCURRENCY = 20
# Enough to pause the batch.
FIRST = 100


class Refusing(Answering):
    """Fails every line with 401 until `repaired`."""

    def __init__(self) -> None:
        super().__init__()
        self.repaired = False
        # Set: it answers all lines at once. Otherwise only the first, so that it does not outrun the settles.
        self.eager = asyncio.Event()

    async def run(self, item: Item) -> Verdict:
        verdict = await super().run(item)
        await asyncio.sleep(0)
        if len(self.sent) > FIRST:
            await self.eager.wait()
        if self.repaired:
            return verdict
        body = b'{"error":{"message":"Incorrect API key provided, request %d."}}' % item.line_no
        return Failed(item, answered_line(item, 401, "r", body), 401)


async def a_limited_batch(db: Session, settings: RunSettings) -> Batch:
    file_id = await a_file(db, {"model": LINES})
    return await batches.create(db, NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, settings))


async def until_idle(db: Session, batch: Batch, status: BatchStatus) -> Batch:
    """The batch has this status, and no worker holds any line of it."""
    while (now := await read(db, batch)).status is not status or now.counts.in_progress:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return now


@pytest.mark.parametrize("number", [1, 2], ids=["one worker", "two workers"])
async def test_the_default_limit_pauses_and_a_continued_batch_runs_the_rest(
    database_url: str, db: Session, tmp_path: Path, number: int
) -> None:
    batch = await a_limited_batch(db, RunSettings(pause_alike=50))
    executor = Refusing()
    settings = WorkerSettings(concurrency=CONCURRENCY, settle_max=10)
    workers = [
        Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, Scope())
        for _ in range(number)
    ]
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        while (await read(db, batch)).status is not BatchStatus.PAUSED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        executor.eager.set()
        paused = await until_idle(db, batch, BatchStatus.PAUSED)
        assert 50 <= paused.failed < LINES
        assert paused.failed == len(executor.sent), "lines in buffers were given back unsent"
        assert paused.pause_rule == "alike"
        (cause,) = await failures.causes(db, paused)
        assert (cause.code, cause.count) == ("http_401", paused.failed)
        assert (await doctor.examine(db)).clean

        executor.repaired = True
        assert await batches.resume(db, batch.id)
        ended = await until_idle(db, batch, BatchStatus.COMPLETED)
        assert (ended.completed, ended.failed) == (LINES - paused.failed, paused.failed)
        assert len(executor.sent) == LINES
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)


async def test_a_batch_of_the_server_is_never_paused(database_url: str, db: Session, tmp_path: Path) -> None:
    batch = await a_limited_batch(db, RunSettings())
    settings = WorkerSettings(concurrency=CONCURRENCY, drain=True)
    executor = Refusing()
    executor.eager.set()
    async with asyncio.timeout(LIMIT):
        await Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, Scope()).run()
    ended = await read(db, batch)
    assert (ended.status, ended.failed) == (BatchStatus.COMPLETED, LINES)


async def test_a_worker_notes_how_long_its_items_took(database_url: str, db: Session, tmp_path: Path) -> None:
    class Slow(Answering):
        async def run(self, item: Item) -> Verdict:
            # Not a wait for a fact: the time is the subject.
            await asyncio.sleep(0.2)
            return await super().run(item)

    file_id = await a_file(db, {"model": 4})
    await batches.create(db, NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, RunSettings()))
    settings = WorkerSettings(concurrency=1, drain=True)
    async with asyncio.timeout(LIMIT):
        await Worker(database_url, Slow(), Objects.at(tmp_path / "objects"), settings, Scope()).run()
    rows = await sql(
        db, "SELECT held_seconds, upstream_seconds, settling_seconds FROM batchline.results ORDER BY line_no"
    )
    assert len(rows) == 4
    for held, upstream, settling in rows:
        assert upstream >= 0.19
        assert settling >= 0
        assert held >= upstream + settling - 0.01
    assert rows[3][0] >= 0.6, "the last one has waited for the three before"

"""`worker --max-items N`: a worker claims at most N items, finishes them and stops."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Batch, Item, Retried, Verdict
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import a_batch, held, read, until
from tests.support.executors import Answering
from tests.support.processes import batchline, simulated, start, status, submit, write_requests
from tests.support.waiting import LIMIT

PATIENCE = 120.0
CLAIMED = re.compile(r"claimed (\d+) of (\d+) wanted")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


async def run(url: str, tmp_path: Path, executor: Answering, **settings: Any) -> Worker:
    worker = Worker(url, executor, Objects.at(tmp_path), WorkerSettings(**settings), Scope())
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    return worker


async def has_ended(db: Session, batch: Batch) -> bool:
    return (await read(db, batch)).ended_at is not None


@pytest.mark.parametrize("drain", [True, False])
async def test_it_claims_so_many_items_finishes_them_and_stops(
    database_url: str, db: Session, tmp_path: Path, drain: bool
) -> None:
    batch, executor = await a_batch(db, 100), Answering()
    worker = await run(database_url, tmp_path, executor, max_items=30, concurrency=8, drain=drain)
    assert worker.claimed == len(executor.lines) == 30
    found = await read(db, batch)
    assert (found.completed, found.claimed) == (30, 30), "it claims no more, not even to give it back"
    assert await held(db) == []


async def test_it_stops_earlier_when_it_drains_and_nothing_is_left(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 10)
    worker = await run(database_url, tmp_path, Answering(), max_items=30, drain=True)
    assert worker.claimed == 10
    assert (await read(db, batch)).ended_at is not None


async def test_it_ends_the_batch_whose_last_items_it_claimed(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 10)
    await run(database_url, tmp_path, Answering(), max_items=10)
    assert (await read(db, batch)).ended_at is not None


async def test_it_waits_for_more_work_until_it_has_claimed_as_many(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    first, executor = await a_batch(db, 3), Answering()
    settings = WorkerSettings(max_items=5)
    worker = Worker(database_url, executor, Objects.at(tmp_path), settings, Scope())
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await until(lambda: has_ended(db, first))
        assert not running.done()
        await a_batch(db, 3)
    assert len(executor.lines) == 5


async def test_retries_that_are_due_later_are_left_to_others(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    class Busy(Answering):
        async def run(self, item: Item) -> Verdict:
            return (
                Retried(item, "busy", "try again", 3600.0) if item.line_no == 1 else await super().run(item)
            )

    batch = await a_batch(db, 4)
    await run(database_url, tmp_path, Busy(), max_items=4, drain=True)
    counts = (await read(db, batch)).counts
    assert (counts.completed, counts.retrying) == (3, 1)


def test_three_workers_with_a_maximum_share_a_batch_and_say_what_they_claimed(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    options = ("--drain", "--max-items", "100", "-c", "25", "--json")
    with simulated("--latency", "5") as upstream:
        batch = submit(write_requests(tmp_path / "in.jsonl", 250), upstream.url, *location)
        workers = [start("-v", "worker", *options, *location) for _ in range(3)]
        said = [worker.communicate(timeout=LIMIT) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0], said
        assert upstream.stats()["executed"] == 250
    claimed = [json.loads(out)["claimed"] for out, _ in said]
    assert sum(claimed) == 250
    assert max(claimed) <= 100
    logged = [[int(items) for items, _ in CLAIMED.findall(log)] for _, log in said]
    assert [sum(items) for items in logged] == claimed
    assert all(int(items) <= int(wanted) for _, log in said for items, wanted in CLAIMED.findall(log))
    assert status(batch, *location)["status"] == "completed"


def test_a_worker_that_is_not_verbose_says_nothing_of_claims(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    with simulated() as upstream:
        submit(write_requests(tmp_path / "in.jsonl", 5), upstream.url, *location)
        done = batchline("worker", "--max-items", "5", *location)
    assert (done.returncode, done.stderr) == (0, "")
    assert batchline("worker", "--max-items", "0", *location).returncode == 2

"""A server that queues what it cannot serve yet, as llama.cpp does: every line completes, with default
settings, and though the timeout is too short for as many as are in flight at first."""

import asyncio
import json
from pathlib import Path

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Item, Ran, TimedOut
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import Discovery
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, read, sql
from tests.support.executors import Answering
from tests.support.processes import batchline, read_lines, simulated, write_requests
from tests.support.waiting import eventually

# 64 × 50 ms is 3.2 s.
ONE_AT_A_TIME = ("--concurrency", "1", "--latency", "50")
TIMEOUT = ("--timeout", "1")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.mark.attack
@pytest.mark.parametrize(
    "kind", [pytest.param((), id="honours keys"), pytest.param(("--keyless",), id="ignores keys")]
)
def test_a_run_with_too_many_in_flight_completes_every_line(
    tmp_path: Path, location: tuple[str, ...], kind: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with simulated(*ONE_AT_A_TIME, *kind) as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "-c", "64", *TIMEOUT, *location)
        seen = upstream.stats()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 300
    assert seen["requests"] > 300, "or nothing has timed out"
    assert batchline("doctor", *location).returncode == 0


@pytest.mark.attack
def test_a_worker_with_defaults_completes_every_line(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with simulated(*ONE_AT_A_TIME, "--keyless") as upstream:
        submitted = batchline(
            "submit", str(inputs), "--upstream", upstream.url, "--json", *TIMEOUT, *location
        )
        batch = json.loads(submitted.stdout)["id"]
        assert batchline("worker", "--drain", *location).returncode == 0
    counts = json.loads(batchline("status", batch, "--json", *location).stdout)["request_counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (300, 300, 0)


class Hanging(Answering):
    """Times out for some lines, when told: time itself is left out. Notes how many are in flight."""

    def __init__(self, *lines: int) -> None:
        super().__init__()
        self.hanging = lines
        self.in_flight = 0
        self.attempts: list[int] = []
        self.company: list[int] = []

    async def run(self, item: Item) -> Ran:  # type: ignore[override]
        self.in_flight += 1
        for _ in range(3):
            await asyncio.sleep(0)
        self.company.append(self.in_flight)
        self.in_flight -= 1
        if item.line_no in self.hanging:
            self.attempts.append(item.claim.attempt)
            return TimedOut(item, "timeout", "no complete answer in time", 0.0625)
        return await super().run(item)


async def run_to_the_end(
    url: str, db: Session, folder: Path, executor: Answering, lines: int, concurrency: int = 8
) -> tuple[tuple[int, int], int]:
    """A worker drains; the counters of its batch, and how many attempts timed out before the last."""
    batch = await a_batch(db, {"m": lines})
    settings = WorkerSettings(concurrency=concurrency, drain=True, lease=30.0)
    worker = Worker(url, executor, Objects.at(folder / "objects"), settings, Scope())
    async with asyncio.timeout(120):
        await worker.run()
    ended = await read(db, batch)
    ((retries,),) = await sql(
        db, "SELECT count(*) FROM batchline.retry_attempts WHERE error_code = 'timeout'"
    )
    return (ended.completed, ended.failed), retries


async def test_a_line_that_always_times_out_fails_alone(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    executor = Hanging(5)
    counters, retries = await run_to_the_end(database_url, db, tmp_path, executor, 400)
    assert counters == (399, 1)
    assert retries == 4, "the last attempt is the failure itself"
    assert sorted(set(executor.attempts)) == [1, 2, 3, 4, 5]
    assert len(executor.attempts) <= 5 + 8, "it is spared a few times, and no more"


async def test_a_server_that_never_answers_uses_up_attempts_one_line_at_a_time(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    executor = Hanging(*range(1, 13))
    counters, retries = await run_to_the_end(database_url, db, tmp_path, executor, 12)
    assert counters == (0, 12)
    assert retries == 48
    assert executor.company[-1] == 1


async def test_a_lowered_limit_is_remembered_while_its_upstream_has_no_work(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    class Recovering(Hanging):
        """Hangs until eight requests have timed out."""

        async def run(self, item: Item) -> Ran:  # type: ignore[override]
            ran = await super().run(item)
            if len(self.attempts) >= 8:
                self.hanging = ()
            return ran

    executor, ended = Recovering(*range(1, 9)), asyncio.Queue[int]()
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=30.0),
        Scope(),
        WorkerOptions(
            producers=[ProducerScope(Scope(excluded_prefixes=("http://",)), 1)],
            discovered=[Discovery(Scope(below=("http://",)), 8)],
            on_ended=lambda batch: ended.put_nowait(batch.completed),
        ),
    )
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await a_batch(db, {"m": 8}, upstream="http://slow")
        assert await ended.get() == 8
        await eventually("the producer to be closed", lambda: len(worker.producers) == 1)
        executor.company.clear()
        await a_batch(db, {"m": 30}, upstream="http://slow")
        assert await ended.get() == 30
        worker.stop()
    assert max(executor.company[:5]) <= 5, "four, and one more for eight answers"


async def test_more_is_in_flight_again_when_time_outs_are_over(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    class Once(Hanging):
        async def run(self, item: Item) -> Ran:  # type: ignore[override]
            ran = await super().run(item)
            self.hanging = ()
            return ran

    executor = Once(1)
    counters, retries = await run_to_the_end(database_url, db, tmp_path, executor, 400)
    assert (counters, retries) == ((400, 0), 0), "and the time-out was no attempt"
    assert executor.lines == list(range(1, 401)), "each is answered once"
    assert max(executor.company[-100:-10]) == 8

"""A service that fails is restarted; one that keeps failing ends the worker; SIGTERM always does."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Completed, Item, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.upstreams.memory import MIB, BodyMemory
from batchline.worker.pause import Pause
from batchline.worker.service import Service
from batchline.worker.supervisor import MAX_FAILURES, ServiceFailed, supervise
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, on, read
from tests.support.executors import Answering
from tests.support.processes import PYTHON, kill, simulated, status, submit, working, write_requests
from tests.support.waiting import LIMIT, wait_for


class NoPause(Pause):
    async def wait(self) -> None:
        await asyncio.sleep(0)


class FailsOften(Service):
    """Fails so many times, then ends."""

    name = "poller"

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.runs = self.repairs = 0

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise LookupError("no such thing")

    def repair(self) -> None:
        self.repairs += 1


async def test_a_service_is_restarted_until_it_has_failed_five_times_in_a_row() -> None:
    service = FailsOften(10)
    with pytest.raises(ServiceFailed, match=r"poller failed 5 times in a row.*no such thing"):
        await supervise(service, NoPause())
    assert service.runs == MAX_FAILURES
    assert service.repairs == MAX_FAILURES - 1


async def test_a_service_that_recovers_is_not_ended() -> None:
    service = FailsOften(2)
    await supervise(service, NoPause())
    assert service.runs == 3


class Surprised(Answering):
    """Raises at the first attempt of the first line, and answers all others."""

    def __init__(self) -> None:
        super().__init__()
        self.raised = 0

    async def run(self, item: Item) -> Verdict:
        if item.line_no == 1 and item.claim.attempt == 1:
            self.raised += 1
            raise LookupError("a bug")
        return await super().run(item)


async def test_an_executor_that_raises_costs_that_item_an_attempt_and_nothing_else(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    executor = Surprised()
    batch = await a_batch(db, 20)
    worker = Worker(database_url, executor, Objects.at(tmp_path), WorkerSettings(drain=True), Scope())
    await worker.run()
    assert (await read(db, batch)).completed == 20
    assert executor.raised == 1
    assert executor.lines == list(range(1, 21))


@contextmanager
def renamed(database: str, table: str) -> Iterator[None]:
    """While this lasts, every statement that reads the table fails in a way that no worker expects."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE batchline.{table} RENAME TO {table}_gone".encode())
        yield
        connection.execute(f"ALTER TABLE batchline.{table}_gone RENAME TO {table}".encode())


# A worker that does not end before the test has seen the first failure and mended its cause.
PERSISTENT = """
from batchline.cli.main import main
from batchline.worker import supervisor

supervisor.MAX_FAILURES = 1000
main()
"""


def test_an_unexpected_error_in_one_service_does_not_end_the_worker(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path))
    with simulated() as upstream:
        batch = submit(write_requests(tmp_path / "input.jsonl", 50), upstream.url, *location)
        with renamed(database_url, "outbox"):
            command = [PYTHON, "-c", PERSISTENT, "worker", *location]
            environment = {name: value for name, value in os.environ.items() if "BATCHLINE" not in name}
            worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
            assert worker.stderr is not None
            line = next(line for line in worker.stderr if "service failed" in line)
            assert "poller" in line
        wait_for("the batch's end", lambda: status(batch, *location)["status"] == "completed")
        _, log = kill(worker, signal.SIGTERM)
    assert worker.returncode == 0, log


def test_a_service_that_keeps_failing_ends_the_process(database_url: str, tmp_path: Path) -> None:
    with (
        renamed(database_url, "outbox"),
        working(database_url, tmp_path) as worker,
    ):
        _, log = worker.communicate(timeout=LIMIT)
    assert worker.returncode == 1
    assert "error: the worker's poller failed 5 times in a row" in log


def test_sigterm_ends_a_worker_whose_services_fail(database_url: str, tmp_path: Path) -> None:
    with (
        renamed(database_url, "outbox"),
        working(database_url, tmp_path) as worker,
    ):
        assert worker.stderr is not None
        next(line for line in worker.stderr if "service failed" in line)
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail("SIGTERM did not end the worker")


async def test_a_worker_leaves_even_if_the_database_stays_unreachable(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers cannot be settled; it waits for a while, then leaves them to be run again."""
    executor = Answering()
    await a_batch(db, 5)
    settings = WorkerSettings(stop_patience=0.2)
    worker = Worker(database_url, executor, Objects.at(tmp_path), settings, Scope())

    async def refused(*_: object) -> None:
        worker.stop()
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(spans, "settle", refused)
    async with asyncio.timeout(120):
        await worker.run()
    assert worker.settler.unsettled


class Lengthy(Answering):
    """Answers at length, after it has taken the memory for that."""

    def __init__(self, memory: BodyMemory, size: int) -> None:
        super().__init__()
        self._memory = memory
        self._size = size
        self.waiting = asyncio.Event()

    async def run(self, item: Item) -> Verdict:
        await super().run(item)
        with self._memory.share() as share:
            if self._size > self._memory.small:
                taking = asyncio.ensure_future(share.grow(self._size))
                await asyncio.sleep(0)
                if not taking.done():
                    self.waiting.set()
                await taking
        return Completed(item, 200, answered_line(item, 200, "r", b'"%b"' % (b"x" * self._size)))


@pytest.mark.parametrize("size", [200_000, 4_000_000], ids=["to send more", "to receive more"])
async def test_a_worker_leaves_though_its_requests_wait_for_memory_that_only_a_settle_frees(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    memory = BodyMemory(16 * MIB, runners=8)
    executor = Lengthy(memory, size)
    await a_batch(db, 40)
    settings = WorkerSettings(concurrency=8, stop_patience=0.2)
    options = WorkerOptions(memory=memory)
    worker = Worker(database_url, executor, Objects.at(tmp_path), settings, Scope(), options)
    refusals = 0

    async def refused(*_: object) -> None:
        nonlocal refusals
        if memory.crowded or executor.waiting.is_set():
            refusals += 1
        if refusals == 2:
            # Once: a second stop would wait for nothing.
            worker.stop()
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(spans, "settle", refused)
    async with asyncio.timeout(120):
        await worker.run()
    assert worker.settler.unsettled
    assert len(executor.sent) < 40


# A worker that is told to stop while its claim ignores that it is cancelled.
STUBBORN_CLAIM = """
import asyncio, sys
from pathlib import Path
from batchline.app.exit_guard import exit_guard
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store import spans
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.executors import Answering

async def claim(*_):
    worker.stop()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    global worker
    spans.claim = claim
    settings = WorkerSettings(stop_patience=0.2)
    worker = Worker(sys.argv[1], Answering(), Objects.at(Path(sys.argv[2])), settings, Scope())
    async with exit_guard(worker, patience=0.2):
        await worker.run()

asyncio.run(main())
"""
# A worker that is told twice to stop while its one request ignores that it is cancelled.
STUBBORN = """
import asyncio, sys
from pathlib import Path
from batchline.app.exit_guard import exit_guard
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.executors import Answering

class Stubborn(Answering):
    async def run(self, item):
        worker.stop()
        worker.stop()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

async def main():
    global worker
    worker = Worker(sys.argv[1], Stubborn(), Objects.at(Path(sys.argv[2])), WorkerSettings(), Scope())
    async with exit_guard(worker, patience=0.2):
        await worker.run()

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [STUBBORN, STUBBORN_CLAIM], ids=["a request", "a claim"])
def test_a_worker_that_ignores_cancellation_is_ended(database_url: str, tmp_path: Path, script: str) -> None:
    on(database_url, lambda db: a_batch(db, 1))
    command = [PYTHON, "-c", script, database_url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert "the worker did not stop and was killed" in done.stderr
    assert "Current thread" in done.stderr, "the log should say where it was"

"""A worker that is told to stop settles every verdict that it has, and so nothing is sent twice."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Claim, Item, Settled, Verdict
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import OnLate, Scope
from batchline.worker.worker import Worker
from tests.support.builders import a_batch, read, sql
from tests.support.executors import Answering
from tests.support.processes import batchline, simulated, working, write_requests
from tests.support.waiting import LIMIT, wait_for

LINES = 20
SLOW_COMMITS = b"""
CREATE SEQUENCE slow_commits;
CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM nextval(''public.slow_commits''), pg_sleep(1); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON batchline.counters
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow_commit();
"""
SETTLING = b"""
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'batchline settle' AND wait_event_type = 'Lock'
"""
LISTENING = b"""
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'batchline listener'
"""


class Together(Answering):
    """Answers five requests at the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self._barrier = asyncio.Barrier(5)

    async def run(self, item: Item) -> Verdict:
        await self._barrier.wait()
        return await super().run(item)


@pytest.mark.parametrize("at_once", [1, 5], ids=["some wait in the settler", "all are on their way"])
async def test_a_worker_that_stops_settles_what_its_settler_holds(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """All its requests are answered, and the first settle takes so long that it is told to stop meanwhile."""
    true_settle, settling, go_on = spans.settle, asyncio.Event(), asyncio.Event()
    sizes: list[int] = []

    async def settle(
        session: Session, worker_id: UUID, verdicts: Sequence[Verdict], on_late: OnLate
    ) -> list[Settled]:
        sizes.append(len(verdicts))
        settling.set()
        await go_on.wait()
        return await true_settle(session, worker_id, verdicts, on_late)

    monkeypatch.setattr(spans, "settle", settle)
    executor = Together()
    batch = await a_batch(db, {"m": 5})
    settings = WorkerSettings(concurrency=5, settle_max=at_once)
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, Scope())
    stopped, true_stop = asyncio.Event(), worker.settler.stop

    def stop() -> None:
        true_stop()
        stopped.set()

    monkeypatch.setattr(worker.settler, "stop", stop)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT):
        await settling.wait()
        assert len(executor.sent) == 5
        worker.stop()
        await stopped.wait()
        go_on.set()
        await running
    assert (await read(db, batch)).completed == 5
    assert await sql(db, "SELECT * FROM batchline.spans") == []
    assert (sizes[0] == 5) is (at_once == 5)
    assert executor.lines == [1, 2, 3, 4, 5]


async def test_what_an_interrupted_claim_has_taken_counts_as_never_sent(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stops before its claim is answered. Nobody has to look for these lines at a provider."""
    true_claim, claimed = spans.claim, asyncio.Event()

    async def claim(*arguments: Any) -> list[Claim]:
        await true_claim(*arguments)
        claimed.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(spans, "claim", claim)
    await a_batch(db, {"m": 5})
    executor = Answering()
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), WorkerSettings(), Scope())
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT):
        await claimed.wait()
        worker.stop()
        await running
    assert executor.sent == []
    assert await sql(db, "SELECT worker_id, submission FROM batchline.spans") == [(None, None)]


async def test_a_claim_that_ends_while_the_worker_stops_does_not_keep_it_waiting(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_batch(db, {"m": 30})
    objects, settings = Objects.at(tmp_path / "objects"), WorkerSettings(concurrency=4)
    worker = Worker(database_url, Answering(), objects, settings, Scope())
    (claimer,) = worker.producers.claimers
    true_fetch = spans.fetch

    async def fetch(*arguments: Any) -> list[Item]:
        items = await true_fetch(*arguments)
        worker.stop()
        # The worker has begun to stop. It calls all services before it waits for the first of them.
        await claimer.idle.wait()
        return items

    monkeypatch.setattr(spans, "fetch", fetch)
    async with asyncio.timeout(LIMIT):
        await worker.run()
    assert not worker.aborting.is_set()


def test_a_worker_that_stops_during_slow_commits_leaves_nothing_to_be_sent_again(
    database_url: str, tmp_path: Path
) -> None:
    """All is sent and one settle waits, so that most verdicts are still in the settler when SIGTERM comes."""
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    with (
        simulated() as upstream,
        psycopg.connect(database_url) as gate,
        psycopg.connect(database_url, autocommit=True) as database,
    ):
        assert batchline("submit", str(inputs), "--upstream", upstream.url, *location).returncode == 0
        database.execute(SLOW_COMMITS)
        gate.execute("SELECT FROM batchline.batches FOR UPDATE")
        with working(database_url, tmp_path / "data", "-c", "4") as worker:
            wait_for("all answers", lambda: upstream.stats()["executed"] == LINES)
            wait_for("a settle", lambda: database.execute(SETTLING).fetchall())
            worker.send_signal(signal.SIGTERM)
            wait_for("the stop", lambda: not database.execute(LISTENING).fetchall())
            gate.commit()
            worker.communicate(timeout=LIMIT)
        assert worker.returncode == 0
        slow_commits = database.execute("SELECT last_value, is_called FROM slow_commits").fetchone()
        assert slow_commits == (pytest.approx(2, abs=1), True), "the settles were slow"
        assert database.execute("SELECT completed FROM batchline.current_batches").fetchall() == [(LINES,)]
        assert batchline("worker", "--drain", *location).returncode == 0
        found = upstream.stats()
    assert (found["requests"], found["executed"], found["replays"]) == (LINES, LINES, 0)

"""Adoption with real processes: killed at every step, and with an upstream that keeps a ledger."""

import hashlib
import json
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from batchline.adopt import phases, verification
from batchline.batches.output import answered_line
from batchline.model import Completed
from batchline.store import batches, doctor, spans
from batchline.store.adoption import transactions
from batchline.store.session import Session
from tests.support.builders import a_worker, on, sql, take
from tests.support.old_database import SHAPES, OldDatabase
from tests.support.processes import (
    PYTHON,
    Upstream,
    batchline,
    kill,
    simulated,
    stop,
    wait_for_executions,
    working,
)
from tests.support.repository import ROOT


@pytest.fixture(params=sorted(SHAPES))
def old(request: pytest.FixtureRequest, database_url: str) -> Iterator[OldDatabase]:
    database = OldDatabase(database_url, request.param)
    yield database
    database.close()


def killed_at(url: str, phase: str, *steps: str) -> None:
    """Run the phase again and again, killed at these steps in turn. Nothing is ever inconsistent."""
    for step in steps:
        command = [PYTHON, "-m", "tests.support.adopt_killed", url, phase, step]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, f"{step}: {done.stderr}"
        assert on(url, doctor.examine).findings == (), step


async def half_run(db: Session) -> None:
    """A worker of ours runs one item, and lets go of others."""
    worker = a_worker()
    item, *_ = await take(db, worker, 10)
    line = answered_line(item, 200, "req", b"{}")
    await spans.settle(db, worker.id, [Completed(item, 200, line)])
    await spans.release(db, worker.id)


@pytest.mark.timeout(600)
def test_every_phase_goes_on_after_a_kill_at_any_step(database_url: str, old: OldDatabase) -> None:
    first, second = old.batch(old.file(40)), old.batch(old.file(40, models=("a", "b")))
    old.end(first, range(1, 30), "completed")
    old.end(second, (3, 5, 8), "failed", retries=2)
    old.end(second, (7,), "processing")
    killed_at(
        database_url,
        "prepare",
        *("begun", "lines numbered", "lines copied", "lines copied", "batches found", "results copied"),
    )
    on(database_url, lambda db: phases.prepare(db, "public"))
    old.end(first, (30,), "completed")
    third = old.batch(old.file(20))
    killed_at(
        database_url,
        "cutover",
        *("lines numbered", "lines copied", "batches found", "results copied"),
        *("locked", "rest copied", "batches created", "committing"),
    )
    assert on(database_url, lambda db: batches.get(db, first)) is None
    # After the commit, the cutover is done.
    killed_at(database_url, "cutover", "adopted")
    assert on(database_url, verification.verify).findings == []
    on(database_url, half_run)
    killed_at(database_url, "rollback", "results written back", "locked", "unfinished reset", "committing")
    assert on(database_url, lambda db: batches.get(db, first)) is not None
    killed_at(database_url, "rollback", "rolled back")
    assert sum((Counter(old.states(batch)) for batch in (first, second, third)), Counter()) == {
        "completed": 31,
        "failed": 3,
        "pending": 66,
    }
    killed_at(database_url, "cutover", "adopted")
    assert on(database_url, verification.verify).findings == []
    killed_at(database_url, "finish", "committing", "finished")
    state = on(database_url, transactions.find)
    assert state is not None
    assert state.phase == "finished"


# The ledger


def executed(upstream: Upstream, old: OldDatabase) -> Counter[tuple[UUID, str]]:
    """How often each line of each file was executed."""
    rows = old.run("SELECT file_id, custom_id, body FROM request_templates")
    known = {
        hashlib.sha256(text.encode()).hexdigest(): (file_id, custom_id)
        for file_id, custom_id, body in rows
        for text in (body, body.replace("\n", " "))
    }
    with urllib.request.urlopen(f"{upstream.url}/executions", timeout=60) as response:
        return Counter(known[json.loads(line)["sha256"]] for line in response.read().splitlines())


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_runs_twice_but_what_a_dead_daemon_had_sent(
    database_url: str, old: OldDatabase, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path))
    with simulated("--record", "--latency", "30") as upstream:
        file_id = old.file(120)
        batch = old.batch(file_id)
        assert old.daemon(upstream.url).work(20) == 20
        # It has sent five, stored two answers, and died.
        old.daemon(upstream.url).work(5, dies_after=2)
        old.run(
            """
            UPDATE requests SET claimed_at = now() - interval '1 hour', started_at = now() - interval '1 hour'
            WHERE state = 'processing'
            """
        )
        for phase in (("prepare",), ("cutover", "--upstream", upstream.url), ("verify",)):
            done = batchline("adopt", *phase, *location)
            assert done.returncode == 0, done.stderr
        status = json.loads(batchline("adopt", "status", "--json", *location).stdout)
        lost = {one["custom_id"] for one in status["possibly_sent"]}
        assert len(lost) == 3
        # It cannot finish before it is stopped, nor lose its lease.
        with working(database_url, tmp_path, "-c", "2", "--max-items", "60", "--lease", "5m") as worker:
            wait_for_executions(upstream, 60)
            stop(worker)
        done = batchline("adopt", "rollback", "--json", *location)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["possibly_sent"] == []
        between = sum(executed(upstream, old).values())
        assert 60 <= between < 120
        daemon = old.daemon(upstream.url)
        while daemon.work(50):
            pass
        assert old.states(batch) == {"completed": 120}
        ledger = executed(upstream, old)
    assert len(ledger) == 120
    assert {custom_id for (_, custom_id), times in ledger.items() if times > 1} == lost
    assert max(ledger.values()) == 2


@pytest.mark.timeout(600)
def test_a_worker_that_was_killed_is_listed_by_the_rollback(
    database_url: str, old: OldDatabase, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path))
    # Slow enough that the worker still runs while a command is started and refused.
    with simulated("--record", "--latency", "200") as upstream:
        batch = old.batch(old.file(300))
        for phase in (("prepare",), ("cutover", "--upstream", upstream.url)):
            assert batchline("adopt", *phase, *location).returncode == 0
        with working(database_url, tmp_path, "--concurrency", "1") as worker:
            wait_for_executions(upstream, 10)
            refused = batchline("adopt", "rollback", *location)
            assert refused.returncode == 2
            assert "1 workers are running adopted batches" in refused.stderr
            kill(worker)
        on(
            database_url,
            lambda db: sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 s'"),
        )
        done = json.loads(batchline("adopt", "rollback", "--json", *location).stdout)
        listed = {one["custom_id"] for one in done["possibly_sent"]}
        daemon = old.daemon(upstream.url)
        while daemon.work(50):
            pass
        ledger = executed(upstream, old)
    assert old.states(batch) == {"completed": 300}
    assert len(ledger) == 300
    assert {custom_id for (_, custom_id), times in ledger.items() if times > 1} <= listed
    assert on(database_url, transactions.find) is not None

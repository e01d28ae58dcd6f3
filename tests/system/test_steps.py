"""Batches in steps with real processes: killed between two steps or at any other moment, nothing is lost."""

import random
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support.killed_worker import STEP_ENDED
from tests.support.processes import (
    PYTHON,
    Upstream,
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    status,
    stop,
    wait_for_executions,
    write_requests,
)
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT, wait_for

pytestmark = pytest.mark.timeout(600)

LINES = 300
LEASE = ("--lease", "2")


def submit_in_steps(inputs: Path, upstream: Upstream, steps: str, *location: str) -> str:
    made = batchline("submit", str(inputs), "--upstream", upstream.url, "--steps", steps, *location)
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[0]


def assert_whole(batch: str, upstream: Upstream, folder: Path, *location: str) -> None:
    assert status(batch, *location)["request_counts"]["completed"] == LINES
    assert batchline("results", batch, "-o", str(folder / "out.jsonl"), *location).returncode == 0
    assert [line["custom_id"] for line in read_lines(folder / "out.jsonl")] == [
        f"q-{n}" for n in range(LINES)
    ]
    seen = upstream.stats()
    assert (seen["executed"], seen["keys_executed_twice"]) == (LINES, 0)
    assert batchline("doctor", *location).returncode == 0


def test_a_worker_that_is_killed_between_two_steps_is_replaced(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES, models=("a", "b"))
    with simulated() as upstream:
        batch = submit_in_steps(inputs, upstream, "10,20,...", *location)
        killed = subprocess.run(
            [PYTHON, "-m", "tests.support.killed_worker", STEP_ENDED, "2", "worker", *LEASE, *location],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=LIMIT,
        )
        assert killed.returncode == -9, killed.stderr
        assert upstream.stats()["executed"] == 30, "nothing of the third step was sent"
        found = status(batch, *location)
        assert (found["request_counts"]["completed"], found["steps"]["lines_begun"]) == (30, 30)
        done = batchline("worker", "--drain", *LEASE, *location)
        assert done.returncode == 0, done.stderr
        assert_whole(batch, upstream, tmp_path, *location)


def test_workers_killed_at_random_moments_never_run_ahead_of_a_step(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES, models=("a", "b"))
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    with simulated("--latency", "15", "--jitter", "30") as upstream:
        batch = submit_in_steps(inputs, upstream, "5,10,...", *location)
        workers = [start("worker", "-c", "8", *LEASE, *location) for _ in range(2)]
        for _ in range(3):
            wait_for_executions(upstream, min(upstream.stats()["executed"] + dice.randrange(3, 60), LINES))
            kill(workers.pop(dice.randrange(2)))
            workers.append(start("worker", "-c", "8", *LEASE, *location))
            assert_nothing_ahead(database_url, seed)
        wait_for(f"the end (seed {seed})", lambda: status(batch, *location)["status"] == "completed", 300)
        for process in workers:
            stop(process)
        assert_whole(batch, upstream, tmp_path, *location)


def assert_nothing_ahead(database: str, seed: int) -> None:
    """No worker holds a line that its step does not have."""
    with psycopg.connect(database) as connection:
        ((ended, held, may_run),) = connection.execute(
            """
            SELECT b.completed + b.failed, coalesce(sum(batchline.span_size(s.outstanding)), 0),
                coalesce(b.step_total, b.total)
            FROM batchline.current_batches AS b
            LEFT JOIN batchline.spans AS s ON s.batch_id = b.id AND s.worker_id IS NOT NULL
            GROUP BY b.id, b.completed, b.failed, b.step_total, b.total
            """
        ).fetchall()
    assert ended + held <= may_run, f"seed {seed}"

"""Real processes, killed with real signals: nothing is lost, nothing is doubled."""

import json
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.processes import (
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    status,
    stop,
    submit,
    wait_for_executions,
    working,
    write_requests,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)

LINES = 3_000
LEASE = ("--lease", "2")


def results(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(completed + failed), 0) FROM batchline.current_batches"
        ).fetchone()
    assert row is not None
    return int(row[0])


def wait_for_results(database: str, count: int, note: str) -> None:
    wait_for(f"{count} results ({note})", lambda: results(database) >= count)


def assert_whole(batch: str, seen: dict[str, Any], output: Path, *location: str) -> None:
    """One result a line, in order; counters agree; no key was run twice; the doctor is content."""
    found = status(batch, *location)
    counts = {name: items for name, items in found["request_counts"].items() if items}
    assert counts == {"total": LINES, "completed": LINES}
    assert found["status"] == "completed"
    fetched = batchline("results", batch, "-o", str(output), *location)
    assert fetched.returncode == 0, fetched.stderr
    assert [line["custom_id"] for line in read_lines(output)] == [f"q-{n}" for n in range(LINES)]
    assert seen["keys_executed_twice"] == 0
    assert seen["executed"] == LINES
    examined = batchline("doctor", *location)
    assert examined.returncode == 0, examined.stderr


def test_workers_killed_at_random_moments_lose_and_double_nothing(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES, models=("a", "b"))
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    with simulated("--latency", "15", "--jitter", "30") as upstream:
        batch = submit(inputs, upstream.url, *location)
        producer = [start("worker", "-c", "24", *LEASE, *location) for _ in range(3)]
        for _ in range(5):
            goal = min(results(database_url) + dice.randrange(50, 500), LINES)
            wait_for_results(database_url, goal, f"seed {seed}")
            kill(producer.pop(dice.randrange(len(producer))))
            producer.append(start("worker", "-c", "24", *LEASE, *location))
        wait_for(f"the end (seed {seed})", lambda: status(batch, *location)["status"] == "completed", 300)
        for process in producer:
            stop(process)
        assert_whole(batch, upstream.stats(), tmp_path / "out.jsonl", *location)
    assert [process.returncode for process in producer] == [0, 0, 0]


def test_a_frozen_worker_is_replaced_and_its_late_verdicts_are_harmless(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    with (
        simulated("--latency", "20") as upstream,
        working(database_url, tmp_path / "data", "-c", "32", *LEASE) as zombie,
    ):
        batch = submit(inputs, upstream.url, *location)
        wait_for("a start", lambda: results(database_url) >= 200)
        zombie.send_signal(signal.SIGSTOP)
        done = batchline("worker", "--drain", "-c", "64", *LEASE, *location)
        assert done.returncode == 0, done.stderr
        # What the frozen one still holds comes free when its lease ends, and a drained worker may have
        # left before that; a second one finds it.
        while status(batch, *location)["status"] != "completed":
            assert batchline("worker", "--drain", "-c", "64", *LEASE, *location).returncode == 0
        requests_before = upstream.stats()["requests"]
        zombie.send_signal(signal.SIGCONT)
        kill(zombie, signal.SIGTERM)
        assert zombie.returncode == 0
        # Its HTTP client may have had a request of each runner that was not on its way yet.
        late = upstream.stats()["requests"] - requests_before
        assert late <= 32, "a worker without a lease sends nothing"
        assert_whole(batch, upstream.stats(), tmp_path / "out.jsonl", *location)


def another_pid(pid_file: Path, other: int) -> int | None:
    """The server's process id if it is not the other one. None while no server runs."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None
    return None if pid == other else pid


def test_postgres_killed_in_the_middle_is_started_again_and_the_run_ends_whole(tmp_path: Path) -> None:
    location = ("--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    output = tmp_path / "out.jsonl"
    # Slow enough that it still runs when PostgreSQL is killed for the second time.
    with simulated("--latency", "80") as upstream:
        process = start(
            "run", str(inputs), "--upstream", upstream.url, "-o", str(output), "-c", "16", *location
        )
        pid_file, killed = tmp_path / "data" / "postgres" / "postmaster.pid", 0
        for goal in (200, 600):
            wait_for_executions(upstream, goal)
            killed = wait_for("a running PostgreSQL", partial(another_pid, pid_file, killed))
            os.kill(killed, signal.SIGKILL)
        said, errors = process.communicate(timeout=300)
        assert process.returncode == 0, said + errors
        listed = json.loads(batchline("list", "--json", *location).stdout)["data"]
        assert_whole(listed[0]["id"], upstream.stats(), tmp_path / "again.jsonl", *location)
    assert output.read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_a_cancelled_batch_keeps_its_results_and_ends_though_its_worker_is_killed(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    # Slow enough that it still runs when it is cancelled.
    with simulated("--latency", "200") as upstream:
        batch = submit(inputs, upstream.url, *location)
        with working(database_url, tmp_path / "data", "-c", "16", *LEASE):
            wait_for("a start", lambda: results(database_url) >= 100)
        assert batchline("cancel", batch, *location).returncode == 0
        wait_for(
            "the end of a cancelled batch",
            lambda: (
                batchline("worker", "--drain", *LEASE, *location).returncode == 0
                and status(batch, *location)["status"] == "cancelled"
            ),
        )
        seen = upstream.stats()
    counts = status(batch, *location)["request_counts"]
    assert batchline("results", batch, "-o", str(tmp_path / "o"), *location).returncode == 0
    assert batchline("results", batch, "--errors", "-o", str(tmp_path / "e"), *location).returncode == 0
    finished, never = read_lines(tmp_path / "o"), read_lines(tmp_path / "e")
    assert len(finished) == counts["completed"] <= seen["executed"]
    assert len(finished) + len(never) == LINES
    assert {line["error"]["code"] for line in never} == {"batch_cancelled"}
    assert batchline("doctor", *location).returncode == 0

"""Asynchronous providers, with real processes: each item becomes exactly one task, whoever is killed when."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.killed_worker import STEPS
from tests.support.processes import (
    PYTHON,
    Upstream,
    batchline,
    read_lines,
    simulated,
    start,
    status,
    write_responses,
)
from tests.support.repository import ROOT
from tests.support.scenes import database
from tests.support.server_process import served
from tests.support.waiting import LIMIT, wait_for

# Several processes work on many items; on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(600)

ITEMS = 2_000
PROVIDER = ("--provider", "openai-background")
# Longer than a busy machine stops a process. Nobody waits for it: a killed process is noticed before it ends.
WORKER = ("worker", "--drain", "--max-items", "1000", "--concurrency", "25", "--lease", "20")
# Settles are large on a slow machine. These are small, so that 2,000 items always need three of them.
SMALL_SETTLES = {"BATCHLINE_WORKER_SETTLE_MAX": "20"}

# The query of the document, on the view.
TWICE = """
    SELECT provider_task_id, count(*) FROM batchline.provider_items
    WHERE provider_task_id IS NOT NULL
    GROUP BY provider_task_id
    HAVING count(*) > 1
"""


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def tasks(upstream: Upstream) -> list[dict[str, Any]]:
    """The provider's own ledger."""
    with urllib.request.urlopen(f"{upstream.url}/tasks", timeout=30) as response:
        return [json.loads(line) for line in response]


def submitted(count: int, upstream: Upstream, folder: Path, location: tuple[str, ...], *options: str) -> str:
    inputs = write_responses(folder / "in.jsonl", count)
    done = batchline(
        "submit", str(inputs), "--upstream", upstream.url, "--json", *PROVIDER, *options, *location
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def drained(batch: str, location: tuple[str, ...], workers: int = 3) -> None:
    """Drain with several workers at once, as often as it takes: one may leave while another one holds the
    rest."""
    while status(batch, *location)["status"] != "completed":
        processes = [start(*WORKER, *location) for _ in range(workers)]
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors


def killed_at(step: str, batch: str, location: tuple[str, ...]) -> None:
    """A worker killed when it reaches the step for the third time. One that reaches its number of items first
    ends well; the next one goes on."""
    command = [PYTHON, "-m", "tests.support.killed_worker", step, "3", *WORKER, *location]
    while True:
        worker = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **SMALL_SETTLES},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if worker.returncode == -signal.SIGKILL:
            return
        assert worker.returncode == 0, worker.stderr
        assert status(batch, *location)["status"] != "completed", f"no worker was killed {step}"


def assert_one_task_each(
    url: str, batch: str, upstream: Upstream, location: tuple[str, ...], count: int = ITEMS
) -> None:
    counts = status(batch, *location)["request_counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (count, count, 0)
    assert rows(url, TWICE) == []
    found = rows(url, "SELECT state, provider_task_id FROM batchline.provider_items")
    assert {state for state, _ in found} == {"succeeded"}
    ledger = tasks(upstream)
    assert len(ledger) == count
    assert {task_id for _, task_id in found} == {task["id"] for task in ledger}
    assert upstream.stats()["tasks"]["keys_with_two_tasks"] == 0
    examined = batchline("doctor", *location)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def test_three_workers_at_once_submit_each_of_2000_items_exactly_once(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated("--task", "1000", "--lose-rate", "0.02") as upstream:
        batch = submitted(ITEMS, upstream, tmp_path, location, "--provider-recovery", "key")
        drained(batch, location)
        assert_one_task_each(database_url, batch, upstream, location)
        assert upstream.stats()["tasks"]["lost_answers"] > 0


@pytest.mark.attack
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("recovery", "options"),
    [("key", ()), ("metadata", ("--keyless",))],
    ids=["a provider that keeps keys", "a provider that can be searched"],
)
def test_workers_killed_between_every_two_steps_submit_each_of_2000_items_exactly_once(
    database_url: str, tmp_path: Path, recovery: str, options: tuple[str, ...]
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated("--task", "300", "--accept", "200", *options) as upstream:
        batch = submitted(
            ITEMS, upstream, tmp_path, location, "--provider-recovery", recovery, "--provider-recheck", "1s"
        )
        for step in STEPS:
            killed_at(step, batch, location)
        drained(batch, location)
        assert_one_task_each(database_url, batch, upstream, location)


def test_a_worker_that_drains_says_what_is_held_and_what_to_do(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path))
    with simulated("--keyless", "--lose-rate", "1") as upstream:
        config = tmp_path / "batchline.toml"
        config.write_text(
            f"""
            [[upstreams]]
            name = "provider"
            base_url = "{upstream.url}"
            models = ["sim-small"]
            provider = "openai-background"
            provider_max_tasks = 2
            """
        )
        submitted(6, upstream, tmp_path, location)
        done = batchline("worker", "--drain", "--config", str(config), *location)
        assert (done.returncode, done.stdout) == (0, "worked on 2 items: 0 completed, 0 failed\n")
        assert "2 lines are held as submission_unknown" in done.stderr
        assert "They fill its limit of tasks" in done.stderr
        assert "set provider_recovery to resubmit" in done.stderr
        assert "cancel their batches" in done.stderr
        done = batchline("worker", "--drain", "--json", "--config", str(config), *location)
    assert json.loads(done.stdout) == {
        "claimed": 0,
        "completed": 0,
        "failed": 0,
        "held": [{"upstream": upstream.url, "lines": 2, "limit_full": True}],
    }


def test_a_provider_that_is_killed_keeps_its_tasks_and_they_are_collected(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    kept = ("--task", "1500", "--tasks-file", str(tmp_path / "tasks.jsonl"))
    with simulated(*kept) as upstream:
        port = upstream.url.rpartition(":")[2]
        batch = submitted(50, upstream, tmp_path, location, "--provider-recovery", "key")
        worker = start(*WORKER, *location)
        wait_for("all tasks", lambda: upstream.stats()["tasks"]["accepted"] == 50)
        upstream.process.kill()
        upstream.process.wait(20)
    with listening(port, *kept) as again:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
        drained(batch, location, workers=1)
        assert_one_task_each(database_url, batch, again, location, 50)


@contextmanager
def listening(port: str, *options: str) -> Iterator[Upstream]:
    """The simulated provider at the port that it had before."""
    process = start("simulate", "--port", port, "--json", *options)
    try:
        assert process.stdout is not None
        ready = "".join(process.stdout.readline() for _ in range(3))
        yield Upstream(json.loads(ready)["url"], process)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


def test_a_server_is_a_provider_for_run(
    server_url: str, template: str, database_url: str, tmp_path: Path
) -> None:
    """Batchline submits to Batchline, which runs each response at a model server."""
    inputs, output = write_responses(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    with (
        database(server_url, template) as other,
        simulated("--latency", "50") as upstream,
        served(other, tmp_path / "server", "--upstream", upstream.url) as server,
    ):
        done = batchline(
            *("run", str(inputs), "--upstream", f"{server.url}/v1", "-o", str(output)),
            *(*PROVIDER, "--provider-recovery", "key", "--api-key-env", "PROVIDER_KEY"),
            *("--database", database_url, "--data-dir", str(tmp_path / "data")),
            PROVIDER_KEY=server.key,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert upstream.stats()["executed"] == 20
    lines = read_lines(output)
    assert [line["custom_id"] for line in lines] == [f"q-{n}" for n in range(20)]
    displayed = rows(database_url, "SELECT provider_task_id FROM batchline.provider_items ORDER BY line_no")
    assert [line["response"]["body"]["id"] for line in lines] == [task_id for (task_id,) in displayed]
    assert all(line["response"]["body"]["output"] for line in lines)

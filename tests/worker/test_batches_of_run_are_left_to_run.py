"""A batch of `run` waits for the same command, unless a worker is asked to take it."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchline.model import RESERVED
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import a_batch, a_worker, sql
from tests.support.processes import (
    Upstream,
    batchline,
    kill,
    simulated,
    start,
    status,
    submit,
    wait_for_executions,
    write_requests,
)

LINES = 400
URL = "http://127.0.0.1:9"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def killed_run(tmp_path: Path, upstream: Upstream, location: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a run that was killed half-way."""
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    command = ("run", str(inputs), "--upstream", upstream.url, "-c", "8", *location)
    process = start(*command)
    wait_for_executions(upstream, 20)
    kill(process)
    return command


def newest(*location: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(batchline("list", "--json", *location).stdout)["data"][0]
    return found


def test_a_worker_skips_a_killed_run_and_serves_other_batches_and_run_continues_it(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    with simulated("--latency", "20") as upstream:
        command = killed_run(tmp_path, upstream, location)
        left = newest(*location)
        other = submit(write_requests(tmp_path / "other.jsonl", 5), upstream.url, *location)
        worked = batchline("worker", "--drain", "--json", *location)
        assert json.loads(worked.stdout)["claimed"] == 5, worked.stderr
        assert status(other, *location)["status"] == "completed"
        assert status(left["id"], *location)["request_counts"]["completed"] < LINES
        assert batchline(*command).returncode == 0
        assert upstream.stats()["keys_executed_twice"] == 0
    assert status(left["id"], *location)["status"] == "completed"


def test_a_worker_that_is_asked_to_finishes_a_killed_run(tmp_path: Path, location: tuple[str, ...]) -> None:
    with simulated("--latency", "20") as upstream:
        killed_run(tmp_path, upstream, location)
        done = batchline("worker", "--drain", "--unfinished-runs", *location)
        assert done.returncode == 0, done.stderr
        assert upstream.stats()["keys_executed_twice"] == 0
    assert newest(*location)["request_counts"]["completed"] == LINES


async def test_only_scopes_that_include_reserved_batches_find_them(db: Session) -> None:
    reserved = await a_batch(db, {"small": 3}, upstream=URL, reserved=True)
    assert await sql(db, "SELECT key FROM batchline.lanes") == [(RESERVED + URL,)]
    skipping, worker = Scope(excluded_prefixes=(f"{RESERVED}http://",)), a_worker()
    assert not (await spans.poll(db, worker.id, skipping)).claimable
    assert await spans.claim(db, worker, skipping, 10) == []
    assert await spans.claim(db, worker, Scope(keys=(URL,)), 10) == []
    assert (await spans.poll(db, worker.id, Scope())).claimable
    (claim,) = await spans.claim(db, worker, Scope(batch_id=reserved.id), 10)
    assert (claim.size, claim.settings.upstream) == (3, URL)


async def test_a_batch_without_an_upstream_keeps_the_models_as_keys(db: Session) -> None:
    await a_batch(db, {"small": 1}, reserved=True)
    assert await sql(db, "SELECT key FROM batchline.lanes") == [("small",)]

"""Commands on batches and items: counts by state, windows, attempts, delete."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchline.model import ids
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import LATER, a_batch, a_worker, completed, failed, on, retry, take
from tests.support.processes import batchline, kill, simulated, start, submit, write_requests
from tests.support.waiting import wait_for

NOWHERE = "http://127.0.0.1:9/v1"
STATES = ("completed", "failed", "pending", "in_progress", "retrying", "cancelled", "expired")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def made(*arguments: str) -> dict[str, Any]:
    done = batchline(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture
def batch(database_url: str) -> str:
    """Eight lines: completed, failed, retrying, two claimed, three pending."""

    async def half_run(db: Session) -> str:
        batch, worker = await a_batch(db, 8), a_worker()
        items = await take(db, worker, 5, Scope(batch_id=batch.id))
        await spans.settle(db, worker.id, [completed(items[0]), failed(items[1]), retry(items[2], LATER)])
        return ids.show(ids.BATCH, batch.id)

    return on(database_url, half_run)


def test_status_and_list_show_every_state_and_they_add_up(location: tuple[str, ...], batch: str) -> None:
    text = batchline("status", batch, *location).stdout
    assert "1 completed, 1 failed, 3 pending, 2 in progress, 1 retrying, 0 cancelled, 0 expired of 8" in text
    counts = made("status", batch, *location)["request_counts"]
    assert sum(counts[state] for state in STATES) == counts["total"] == 8
    header, row = batchline("list", *location).stdout.splitlines()
    assert header.split() == ["id", "file", "model", "upstream", "state", "done", "failed", "age"]
    short, *columns = row.split()
    assert batch.removeprefix("batch_").startswith(short)
    assert columns[:7] == ["input.jsonl", "model", "in", "progress", "25.0", "%", "1"]
    (listed,) = made("list", *location)["data"]
    assert listed["request_counts"] == counts


def test_cancel_shows_what_never_runs(location: tuple[str, ...], batch: str) -> None:
    text = batchline("cancel", batch, *location).stdout
    assert "1 completed, 1 failed, 0 pending, 2 in progress, 1 retrying, 3 cancelled, 0 expired of 8" in text


def test_a_batch_without_a_window_has_no_deadline_and_completes(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = str(write_requests(tmp_path / "in.jsonl", 5))
    with simulated() as upstream:
        batch = made("submit", inputs, "--upstream", upstream.url, "--window", "none", *location)
        assert (batch["completion_window"], batch["expires_at"]) == ("none", None)
        assert batchline("worker", "--drain", *location).returncode == 0
        assert made("status", batch["id"], *location)["status"] == "completed"
        done = batchline("run", inputs, "--upstream", upstream.url, "--window", "none", *location)
        assert done.returncode == 0, done.stderr
    refused = batchline("submit", inputs, "--upstream", NOWHERE, "--window", "never", *location)
    assert refused.returncode == 2
    assert "`none` is no deadline" in refused.stderr


def test_attempts_shows_an_item_and_its_failed_attempts(location: tuple[str, ...], batch: str) -> None:
    item = made("attempts", batch, "line-3", *location)
    assert (item["state"], item["attempt"], item["line_no"]) == ("retrying", 2, 3)
    (attempt,) = item["attempts"]
    assert (attempt["attempt"], attempt["error_code"], attempt["message"]) == (1, "rate_limit", "slow down")
    assert attempt["not_before"] > attempt["created_at"]
    text = batchline("attempts", batch, "line-3", *location).stdout
    assert "line 3, retrying, attempt 2, not before" in text
    assert "rate_limit" in text
    assert "claimed at" in batchline("attempts", batch, "line-4", *location).stdout


@pytest.mark.parametrize("custom_id", ["line-99", ""])
def test_attempts_of_an_unknown_item_are_refused(
    location: tuple[str, ...], batch: str, custom_id: str
) -> None:
    done = batchline("attempts", batch, custom_id, *location)
    assert done.returncode == 2
    assert f"has no item {custom_id!r}" in done.stderr


def test_delete_refuses_a_running_batch_unless_it_is_forced(location: tuple[str, ...], batch: str) -> None:
    refused = batchline("delete", batch, *location)
    assert refused.returncode == 1
    assert "the batch is in_progress" in refused.stderr
    assert "--force" in refused.stderr
    assert made("status", batch, *location)["status"] == "in_progress"
    done = batchline("delete", batch, "--force", *location)
    assert done.returncode == 0, done.stderr
    assert f"{batch}  deleted" in done.stdout
    gone = batchline("status", batch, *location)
    assert (gone.returncode, batchline("delete", batch, *location).returncode) == (2, 2)
    assert "there is no batch" in gone.stderr
    assert "clean: 0 batches" in batchline("doctor", *location).stdout


def test_delete_deletes_rows_and_files_and_the_same_input_can_run_again(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    with simulated() as upstream:
        batch = submit(inputs, upstream.url, *location)
        assert batchline("worker", "--drain", *location).returncode == 0
        assert list((tmp_path / "data" / "objects").rglob("*.jsonl"))
        deleted = made("delete", batch, *location)
        # Results, lines, one lane of the file; the output and the input.
        assert deleted == {"id": batch, "deleted": True, "rows": 61, "files": 2, "later": None}
        assert not list((tmp_path / "data" / "objects").rglob("*.jsonl"))
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
        assert done.returncode == 0, done.stderr
        assert upstream.stats()["executed"] == 60, "a new batch runs all lines again"


@pytest.mark.timeout(600)
def test_a_worker_that_runs_a_batch_which_is_deleted_goes_on(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    """Its requests in flight end, their answers are discarded, and it runs the next batch."""
    with simulated("--latency", "1000") as upstream:
        doomed = submit(write_requests(tmp_path / "a.jsonl", 2_000), upstream.url, *location)
        worker = start("worker", "-c", "16", *location)
        try:
            wait_for("requests in flight", lambda: upstream.stats()["requests"] >= 32)
            assert batchline("delete", doomed, "--force", *location).returncode == 0
            kept = submit(write_requests(tmp_path / "b.jsonl", 20), upstream.url, *location)
            wait_for("the end", lambda: made("status", kept, *location)["status"] == "completed")
            assert worker.poll() is None
        finally:
            kill(worker)
        assert upstream.stats()["requests"] < 2_000
    assert batchline("worker", "--drain", *location).returncode == 0
    assert "clean: 1 batch, 1 lane, 20 results, 0 spans" in batchline("doctor", *location).stdout

"""`batchline change`, and --priority of `submit`."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batchline.model import ids
from batchline.store.session import Session
from tests.support.builders import a_batch, on, sql
from tests.support.processes import batchline, write_requests

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def batch(database_url: str) -> str:
    async def made(db: Session) -> str:
        return ids.show(ids.BATCH, (await a_batch(db, 3)).id)

    return on(database_url, made)


def changed(batch: str, *arguments: str) -> dict[str, Any]:
    done = batchline("change", batch, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_running_batch_is_changed_and_the_audit_log_says_by_whom(
    location: tuple[str, ...], batch: str, database_url: str
) -> None:
    document = changed(
        batch, "--priority", "-5", "-c", "8", "--deadline", "2099-01-01T00:00Z", "--as", "anna", *location
    )
    deadline = int(datetime(2099, 1, 1, tzinfo=UTC).timestamp())
    assert (document["priority"], document["concurrency"], document["expires_at"]) == (-5, 8, deadline)
    done = batchline("change", batch, "--concurrency", "none", "--deadline", "none", *location)
    assert "priority -5, no limit of its own, deadline none" in done.stdout

    async def recorded(db: Session) -> list[Any]:
        query = "SELECT actor, action, detail -> 'priority' FROM batchline.audit_log ORDER BY id"
        return await sql(db, query)

    assert on(database_url, recorded)[0] == ("anna", "batch.changed", -5)


def test_a_change_that_makes_no_sense_is_refused(location: tuple[str, ...], batch: str) -> None:
    for arguments, message in (
        ((), "Name at least one of priority, concurrency and deadline."),
        (("--concurrency", "many"), "--concurrency 'many': give a number, or none"),
        (("--concurrency", "0"), "Invalid 'concurrency'"),
        (("--deadline", "soon"), "--deadline 'soon': give a time from now on"),
        (("--deadline", "2020-01-01T00:00Z"), "The deadline must be in the future."),
        (("--priority", "101"), "Invalid value for '--priority'"),
    ):
        done = batchline("change", batch, *arguments, *location)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_batch_that_is_over_cannot_be_changed(location: tuple[str, ...], batch: str) -> None:
    assert batchline("cancel", batch, *location).returncode == 0
    done = batchline("change", batch, "--priority", "1", *location)
    assert (done.returncode, "The batch cannot be changed: it is cancelling." in done.stderr) == (1, True)


def test_a_batch_is_submitted_with_a_priority(location: tuple[str, ...], tmp_path: Path) -> None:
    inputs = str(write_requests(tmp_path / "in.jsonl", 1))
    done = batchline("submit", inputs, "--upstream", NOWHERE, "--priority", "9", *location, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["priority"] == 9

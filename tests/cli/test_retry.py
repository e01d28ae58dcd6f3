"""`batchline retry` and `run --retry-failed`: lines that are not completed run again, in the same batch."""

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects
from batchline.model import ids
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, completed, failed, on, take
from tests.support.key_upstream import RIGHT_KEY, KeyUpstream, upstream_with_a_key
from tests.support.processes import (
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    wait_for_executions,
    write_requests,
)

KEY = "TEST_RETRY_KEY"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def run_command(upstream: KeyUpstream, inputs: Path, *more: str) -> tuple[str, ...]:
    return ("run", str(inputs), "--upstream", upstream.url, "--api-key-env", KEY, *more)


def test_after_the_key_is_corrected_the_offered_command_runs_the_failed_lines_and_merges_the_output(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    output, errors = tmp_path / "in.output.jsonl", tmp_path / "in.output.errors.jsonl"
    with upstream_with_a_key() as upstream:
        command = run_command(upstream, inputs, *location)
        wrong = batchline(*command, **{KEY: "wrong-key"})
        assert wrong.returncode == 1
        assert "0 of 30 completed" in wrong.stdout
        assert len(read_lines(errors)) == 30

        before = batchline(*command, **{KEY: RIGHT_KEY})
        assert "finished before" in before.stdout
        offered = shlex.split(before.stdout.strip().splitlines()[-1])
        assert offered == ["batchline", *command, "--retry-failed"]
        assert not upstream.answered

        right = batchline(*offered[1:], **{KEY: RIGHT_KEY})
        assert right.returncode == 0, right.stderr
        assert "30 of 30 completed" in right.stdout
        assert "finished before" not in right.stdout
        assert [line["custom_id"] for line in read_lines(output)] == [f"q-{n}" for n in range(30)]
        assert not errors.exists()
        assert set(upstream.answered.values()) == set(upstream.refused.values()) == {1}

        again = batchline(*offered[1:], **{KEY: RIGHT_KEY})
        assert "finished before" in again.stdout
        assert set(upstream.answered.values()) == {1}, "nothing is left to retry"
    assert batchline("doctor", *location).returncode == 0


def test_a_retry_of_a_batch_of_run_offers_the_command_that_continues_it(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    with upstream_with_a_key() as upstream:
        command = run_command(upstream, inputs, *location)
        assert batchline(*command, **{KEY: "wrong-key"}).returncode == 1
        said = batchline("retry", "@1", "--code", "http_401", *location)
        assert "3 of 3 lines run again; continue with\n" in said.stdout
        offered = shlex.split(said.stdout.splitlines()[1])
        assert offered == ["batchline", *command]
        again = batchline("retry", "@1", *location)
        assert again.returncode == 1
        assert "it is in_progress; wait until it has ended; continue with\n" in again.stderr
        done = batchline(*offered[1:], **{KEY: RIGHT_KEY})
        assert "3 of 3 completed" in done.stdout
        assert len(read_lines(tmp_path / "in.output.jsonl")) == 3


def test_a_retry_of_a_batch_that_its_command_no_longer_finds_offers_a_worker(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    with upstream_with_a_key() as upstream:
        command = run_command(upstream, inputs, *location)
        assert batchline(*command, **{KEY: "wrong-key"}).returncode == 1
        assert batchline(*command, "--fresh", **{KEY: "wrong-key"}).returncode == 1
        said = batchline("retry", "@2", *location)
        assert "3 of 3 lines run again; `batchline worker --unfinished-runs` continues it" in said.stdout


def test_lines_of_a_batch_of_run_are_left_to_the_workers_that_the_message_names(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    with upstream_with_a_key() as upstream:
        assert batchline(*run_command(upstream, inputs, *location), **{KEY: "wrong-key"}).returncode == 1
        done = batchline("retry", "@1", *location)
        assert "or with `batchline worker --unfinished-runs`" in done.stdout
        worker = ("worker", "--drain", "--json", *location)
        assert json.loads(batchline(*worker, **{KEY: RIGHT_KEY}).stdout)["claimed"] == 0
        done = batchline(*worker, "--unfinished-runs", **{KEY: RIGHT_KEY})
        assert json.loads(done.stdout)["completed"] == 3


def test_a_retry_that_is_killed_goes_on_with_the_same_command(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1_000)
    with simulated("--latency", "10") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        process = start(*command)
        wait_for_executions(upstream, 100)
        kill(process, signal.SIGKILL)
        (batch,) = json.loads(batchline("list", "--json", *location).stdout)["data"]
        assert batchline("cancel", batch["id"], *location).returncode == 0
        # The lease of the killed worker is over for a new one of the same machine; it ends the batch.
        ended = batchline(*command)
        assert ended.returncode == 1
        done = json.loads(batchline("status", batch["id"], "--json", *location).stdout)
        assert done["status"] == "cancelled"
        first = done["request_counts"]["completed"]
        assert first < 1_000

        process = start(*command, "--retry-failed")
        wait_for_executions(upstream, first + 100)
        kill(process, signal.SIGKILL)
        last = batchline(*command, "--retry-failed")
        assert last.returncode == 0, last.stderr
        assert upstream.stats()["keys_executed_twice"] == 0
    assert [line["custom_id"] for line in read_lines(tmp_path / "in.output.jsonl")] == [
        f"q-{n}" for n in range(1_000)
    ]
    assert batchline("doctor", *location).returncode == 0


# `batchline retry`


@pytest.fixture
def ended(database_url: str, tmp_path: Path) -> str:
    """A cancelled batch: one line completed, two failed with 400, one never ran."""

    async def made(db: Session) -> str:
        batch, worker = await a_batch(db, 4), a_worker()
        one, two, three = await take(db, worker, 3)
        await spans.settle(db, worker.id, [completed(one), failed(two), failed(three)])
        await batches.close(db, batch.id, "cancel")
        await finalize_one(db, Objects.at(tmp_path / "data" / "objects"), worker, batch.id)
        return ids.show(ids.BATCH, batch.id)

    return on(database_url, made)


def retried(*arguments: str) -> dict[str, Any]:
    done = batchline("retry", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ((), 3),
        (("--only", "failed"), 2),
        (("--only", "cancelled"), 1),
        (("--only", "failed,cancelled"), 3),
        (("--code", "http_400"), 2),
        (("--code", "http_400,batch_cancelled"), 3),
    ],
)
def test_the_selected_lines_are_put_back(
    location: tuple[str, ...], ended: str, options: tuple[str, ...], lines: int
) -> None:
    document = retried(ended, *options, *location)
    assert (document["retried"], document["status"]) == (lines, "in_progress")
    assert document["request_counts"]["pending"] == lines
    again = batchline("retry", ended, *location)
    assert again.returncode == 1
    assert "it is in_progress; wait until it has ended" in again.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--only", "lost"), 2, "--only 'lost': give one or more of failed, expired, cancelled"),
        (("--code", "401 "), 2, "'401' is not an error code"),
        (("--code", ","), 2, "--code ',': give at least one value"),
        (("--cause", "key"), 2, "is not the key of a cause"),
        (
            ("--code", "http_503"),
            1,
            "no line matches; the lines that are not completed have the codes: 2 http_400",
        ),
        (("--only", "expired"), 1, "no line matches"),
    ],
)
def test_what_cannot_be_retried_is_refused_with_a_reason(
    location: tuple[str, ...], ended: str, options: tuple[str, ...], code: int, message: str
) -> None:
    done = batchline("retry", ended, *options, *location)
    assert done.returncode == code
    assert message in done.stderr


def test_an_unknown_batch_is_refused(location: tuple[str, ...], ended: str) -> None:
    done = batchline("retry", "batch_" + "0" * 32, *location)
    assert done.returncode == 2
    assert "there is no batch" in done.stderr


def test_run_cannot_both_start_over_and_retry(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    command = ("run", str(inputs), "--upstream", "http://localhost:1", "--fresh", "--retry-failed")
    refused = batchline(*command, *location)
    assert refused.returncode == 2
    assert "--fresh sends every line again, --retry-failed only those" in refused.stderr

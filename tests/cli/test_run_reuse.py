"""`batchline run` on an edited file: only lines without an answer are sent."""

import json
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.processes import Upstream, batchline, kill, read_lines, simulated, start, write_requests
from tests.support.waiting import wait_for


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def executed(upstream: Upstream) -> int:
    return int(upstream.stats()["executed"])


def add_a_line(inputs: Path, nth: int, text: str) -> None:
    """Insert a request at a line of the file."""
    lines = inputs.read_text().splitlines(keepends=True)
    request = json.loads(lines[0])
    request["custom_id"] = f"new-{text}"
    request["body"]["messages"][0]["content"] = text
    lines.insert(nth, json.dumps(request) + "\n")
    inputs.write_text("".join(lines))


def answers(path: Path) -> dict[str, Any]:
    return {line["custom_id"]: line["response"]["body"]["choices"] for line in read_lines(path)}


def test_one_line_more_is_one_request_more(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs, output = (
        write_requests(tmp_path / "in.jsonl", 300, models=("a", "b")),
        tmp_path / "in.output.jsonl",
    )
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        before = answers(output)
        add_a_line(inputs, 7, "What is new?")
        done = batchline(*command)
        assert executed(upstream) == 301
    assert done.returncode == 0, done.stderr
    assert "looking for answers of earlier runs" in done.stdout
    assert "301 of 301 completed; 300 reused" in done.stdout
    names = [json.loads(line)["custom_id"] for line in inputs.read_text().splitlines()]
    assert [line["custom_id"] for line in read_lines(output)] == names
    after = answers(output)
    assert {name: after[name] for name in before} == before
    assert batchline("doctor", *location).returncode == 0


def test_a_file_whose_lines_are_all_known_sends_nothing(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 50)
    with simulated() as upstream:
        assert batchline("run", str(inputs), "--upstream", upstream.url, *location).returncode == 0
        fewer = tmp_path / "fewer.jsonl"
        fewer.write_text("".join(reversed(inputs.read_text().splitlines(keepends=True)[:40])))
        done = batchline("run", str(fewer), "--upstream", upstream.url, "--json", *location)
        assert executed(upstream) == 50
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["completed"], document["reused"], document["input_tokens"]) == (40, 40, 0)
    output = [line["custom_id"] for line in read_lines(tmp_path / "fewer.output.jsonl")]
    assert output == [f"q-{n}" for n in reversed(range(40))]


def test_fresh_sends_all_lines_of_an_edited_file(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        add_a_line(inputs, 0, "What is new?")
        done = batchline(*command, "--fresh")
        assert done.returncode == 0, done.stderr
        assert executed(upstream) == 41
    assert "reused" not in done.stdout


def test_an_edit_of_an_interrupted_run_sends_what_was_not_answered(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3_000)
    with simulated("--latency", "20") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--concurrency", "16", *location)
        process = start(*command)
        wait_for("some executions", lambda: executed(upstream) >= 100)
        kill(process, signal.SIGINT)
        with psycopg.connect(database_url) as connection:
            row = connection.execute("SELECT count(*) FROM batchline.results").fetchone()
        assert row is not None
        answered = int(row[0])
        sent = executed(upstream)
        assert 100 <= answered == sent < 3_000
        add_a_line(inputs, 500, "What is new?")
        done = batchline(*command)
        assert done.returncode == 0, done.stderr
        assert executed(upstream) == sent + 3_001 - answered
    assert f"{answered:,} reused" in done.stdout


def test_a_run_that_is_killed_while_it_copies_answers_starts_over_and_doubles_nothing(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 200)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'batchline.results'::regclass"
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        add_a_line(inputs, 100, "What is new?")
        with (
            psycopg.connect(database_url, autocommit=True) as watching,
            psycopg.connect(database_url) as lock,
        ):
            lock.execute("LOCK TABLE batchline.results IN SHARE MODE")
            process = start(*command)
            wait_for("the copying to wait", lambda: watching.execute(waiting).fetchone() is not None)
            kill(process, signal.SIGKILL)
            lock.rollback()
            count = "SELECT count(*) FROM batchline.batches"
            assert watching.execute(count).fetchone() == (1,)
            done = batchline(*command)
            assert watching.execute(count).fetchone() == (2,)
        assert done.returncode == 0, done.stderr
        assert executed(upstream) == 201
    assert "201 of 201 completed; 200 reused" in done.stdout
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 201
    assert batchline("doctor", *location).returncode == 0


def test_two_runs_of_one_edited_file_at_once_send_each_new_line_once(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 200)
    with simulated("--latency", "50") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url)
        assert batchline(*command, *location).returncode == 0
        for nth in range(20):
            add_a_line(inputs, 10 * nth, f"What is new in {nth}?")
        both = [start(*command, "-o", str(tmp_path / f"{name}.jsonl"), *location) for name in ("one", "two")]
        for process in both:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
        seen = upstream.stats()
    assert (seen["executed"], seen["keys_executed_twice"]) == (220, 0)
    assert answers(tmp_path / "one.jsonl") == answers(tmp_path / "two.jsonl")
    assert len(read_lines(tmp_path / "one.jsonl")) == 220
    assert batchline("doctor", *location).returncode == 0

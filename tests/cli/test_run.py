"""`batchline run`: the whole way of a file, and every way it can be interrupted."""

import json
import signal
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import (
    Upstream,
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    wait_for_executions,
    without_ids,
    write_requests,
)
from tests.support.waiting import wait_for


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def executed(upstream: Upstream) -> int:
    return int(upstream.stats()["executed"])


def test_every_line_is_answered_in_input_order(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 500, models=("a", "b", "c"))
    output = tmp_path / "out.jsonl"
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "-o", str(output), *location)
        seen = upstream.stats()
    assert done.returncode == 0, done.stderr
    assert "500 of 500 completed" in done.stdout
    lines = read_lines(output)
    assert [line["custom_id"] for line in lines] == [f"q-{n}" for n in range(500)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert (seen["executed"], seen["keys_executed_twice"]) == (500, 0)


def test_the_same_command_again_says_so_and_writes_the_output_again(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    output = tmp_path / "in.output.jsonl"
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        first = output.read_bytes()
        output.unlink()
        again = batchline(*command)
        assert again.returncode == 0
        assert "finished before" in again.stdout
        assert output.read_bytes() == first
        assert executed(upstream) == 20


def test_fresh_runs_the_lines_again(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        assert batchline(*command, "--fresh").returncode == 0
        assert executed(upstream) == 40


def test_several_inputs_make_one_output(tmp_path: Path, location: tuple[str, ...]) -> None:
    first = write_requests(tmp_path / "a.jsonl", 3)
    second = tmp_path / "b.jsonl"
    second.write_text(first.read_text().replace("q-", "r-"))
    with simulated() as upstream:
        output = tmp_path / "out.jsonl"
        done = batchline(
            "run", str(first), str(second), "--upstream", upstream.url, "-o", str(output), *location
        )
    assert done.returncode == 0, done.stderr
    assert [line["custom_id"] for line in read_lines(output)] == ["q-0", "q-1", "q-2", "r-0", "r-1", "r-2"]


def test_json_prints_one_document(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *location)
    document = json.loads(done.stdout)
    assert (document["total"], document["completed"], document["failed"]) == (5, 5, 0)
    assert document["status"] == "completed"


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_run_resumes_to_the_output_of_an_uninterrupted_one(
    tmp_path: Path, location: tuple[str, ...], times: int
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3_000, models=("a", "b"))
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    with simulated() as calm:
        assert (
            batchline("run", str(inputs), "--upstream", calm.url, "-o", str(whole), *location).returncode == 0
        )
    with simulated("--latency", "10") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-o", str(broken), *location)
        for part in range(times):
            process = start(*command)
            wait_for_executions(upstream, 700 * (part + 1))
            kill(process, signal.SIGKILL)
        done = batchline(*command)
        seen = upstream.stats()
    assert done.returncode == 0, done.stderr
    assert without_ids(broken) == without_ids(whole)
    assert seen["executed"] == seen["distinct_keys"] == 3_000
    assert seen["keys_executed_twice"] == 0
    assert batchline("doctor", *location).returncode == 0


def test_ctrl_c_waits_for_requests_in_flight_and_says_how_to_continue(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2_000)
    # Slow enough that the run is not over, however late the signal comes.
    with simulated("--latency", "300") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location, "--concurrency")
        process = start(*command, "16")
        wait_for("some executions", lambda: executed(upstream) >= 100)
        _, errors = kill(process, signal.SIGINT)
        assert process.returncode == 130
        assert "batchline run" in errors
        with psycopg.connect(database_url) as connection:
            held = connection.execute(
                "SELECT count(*) FROM batchline.spans WHERE worker_id IS NOT NULL"
            ).fetchone()
            workers = connection.execute("SELECT count(*) FROM batchline.workers").fetchone()
            results = connection.execute("SELECT count(*) FROM batchline.results").fetchone()
        assert held == (0,), "a graceful stop leaves nothing held"
        assert workers == (0,)
        seen = upstream.stats()
        assert results == (seen["executed"],), "what was in flight was waited for and settled"
        assert batchline(*command, "500").returncode == 0
        assert upstream.stats()["executed"] == 2_000


def test_a_second_ctrl_c_leaves_at_once_and_what_was_sent_is_replayed(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 100)
    # No answer may come before the second signal, however late that is.
    with simulated("--latency", "20000") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--concurrency", "100", *location)
        process = start(*command)
        wait_for("all in flight", lambda: upstream.stats()["in_flight"] == 100)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "press Ctrl-C again" in process.stderr.readline()
        kill(process, signal.SIGINT)
        assert process.returncode == 130
        assert batchline(*command).returncode == 0
        seen = upstream.stats()
    assert (seen["executed"], seen["keys_executed_twice"]) == (100, 0)
    assert seen["replays"] == 100


def test_failed_lines_are_kept_with_their_status_and_exit_code_1(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    with simulated("--error-rate", "1") as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1"),
            *("-o", str(tmp_path / "out.jsonl"), "--errors", str(tmp_path / "err.jsonl"), *location),
        )
    assert done.returncode == 1
    assert str(tmp_path / "err.jsonl") in done.stdout.replace("\n", "")
    errors = read_lines(tmp_path / "err.jsonl")
    assert len(errors) == 30
    assert all(line["response"]["status_code"] >= 500 and line["error"] is None for line in errors)


def test_faults_of_every_kind_are_retried_to_a_full_output(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 400)
    faults = ("--error-rate", "0.1", "--drop-rate", "0.1", "--hang-rate", "0.02", "--seed", "7")
    with simulated(*faults) as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url, "--timeout", "1", "--max-attempts", "20"),
            *("--concurrency", "100", *location),
        )
        seen = upstream.stats()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 400
    assert seen["keys_executed_twice"] == 0
    assert batchline("doctor", *location).returncode == 0


def test_an_upstream_without_a_batch_api_is_exit_code_2_and_nothing_is_run(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--via", "batch", *location)
    assert done.returncode == 2
    assert "has no batch API (GET /v1/batches answers 404): use --via direct; nothing was sent" in done.stderr


def test_an_unreachable_upstream_is_exit_code_2_and_nothing_is_run(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    done = batchline("run", str(inputs), "--upstream", "http://127.0.0.1:9", *location)
    assert done.returncode == 2
    assert "unreachable" in done.stderr
    assert "nothing was sent" in done.stderr
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM batchline.batches").fetchone() == (0,)


BAD_LINES = {
    "not JSON": (b"{nope\n", "invalid_json_line"),
    "not UTF-8": (
        b'{"custom_id":"\xff","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}\n',
        "invalid_utf8",
    ),
    "nested a thousand deep": (
        b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":' + b"[" * 1000 + b"}\n",
        "invalid_json_line",
    ),
    "a NUL character": (b'{"custom_id":"a\0"}\n', "invalid_json_line"),
    "wrong url": (
        b'{"custom_id":"a","method":"POST","url":"http://evil/x","body":{"model":"m"}}\n',
        "invalid_url",
    ),
    "missing model": (
        b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}}\n',
        "missing_required_parameter",
    ),
    "duplicate custom_id": (
        b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}\n' * 2,
        "duplicate_custom_id",
    ),
    "empty": (b"", "empty_file"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_input_is_named_and_nothing_is_left(
    name: str, tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    content, code = BAD_LINES[name]
    inputs = tmp_path / "in.jsonl"
    inputs.write_bytes(content)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
        assert upstream.stats()["requests"] == 0
    assert done.returncode == 2, done.stdout
    assert code in done.stderr
    with psycopg.connect(database_url) as connection:
        for table in ("files", "file_lanes", "lines", "batches"):
            query = psycopg.sql.SQL("SELECT count(*) FROM {}").format(
                psycopg.sql.Identifier("batchline", table)
            )
            assert connection.execute(query).fetchone() == (0,), table


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "missing.jsonl", "--upstream", "http://127.0.0.1:9"),
        ("run", ".", "--upstream", "http://127.0.0.1:9"),
        ("run", __file__),
        ("run", __file__, "--upstream", "ftp://x"),
        ("run", __file__, "--upstream", "http://127.0.0.1:9", "--window", "soon"),
        ("run", __file__, "--upstream", "http://127.0.0.1:9", "-o", "/no/such/folder/x"),
        ("run", __file__, "--upstream", "http://127.0.0.1:9", "--concurrency", "0"),
        ("run",),
        ("status", "nonsense"),
        ("frobnicate",),
    ],
)
def test_bad_usage_is_exit_code_2_with_a_message(
    arguments: tuple[str, ...], location: tuple[str, ...]
) -> None:
    done = batchline(*arguments, *(location if arguments[0] in ("run", "status") else ()))
    assert done.returncode == 2
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_an_unreachable_database_is_reported(tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    done = batchline(
        *("run", str(inputs), "--upstream", "http://127.0.0.1:9"),
        *("--database", "postgresql://nobody@127.0.0.1:9/none", "--data-dir", str(tmp_path)),
    )
    assert done.returncode == 2
    assert "database" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("given", ["option", "variable"])
def test_the_memory_for_answers_can_be_set(tmp_path: Path, database_url: str, given: str) -> None:
    """Half of it is for large answers, so none of these fits."""
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    options = ("--body-memory", "16MiB") if given == "option" else ()
    environment = {"BATCHLINE_BODY_MEMORY": "16MiB"} if given == "variable" else {}
    with simulated("--answer-bytes", str(9 * 2**20)) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        done = batchline("run", str(inputs), "--upstream", upstream.url, *options, *location, **environment)
    assert done.returncode == 1, done.stderr
    errors = read_lines(tmp_path / "in.output.errors.jsonl")
    assert [line["error"]["code"] for line in errors] == ["response_too_large"] * 2

"""Log options stand anywhere on the command line; the log is text or JSON; workers report."""

import json
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchline.cli.main import command_line
from tests.support.processes import batchline, kill, simulated, start, submit, write_requests
from tests.support.waiting import wait_for


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.mark.parametrize(
    "arguments", [("-v", "worker"), ("worker", "-v"), ("worker", "--verbose"), ("--verbose", "worker", "-v")]
)
def test_verbose_may_stand_anywhere(arguments: tuple[str, ...], location: tuple[str, ...]) -> None:
    done = batchline(*arguments, "--drain", *location)
    assert done.returncode == 0
    assert "[info     ] worker started" in done.stderr


def test_without_verbose_there_is_no_info(location: tuple[str, ...]) -> None:
    assert batchline("worker", "--drain", *location).stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [("--log-json", "-v", "worker"), ("-v", "worker", "--log-json"), ("worker", "--log-json", "-v")],
)
def test_a_log_as_json_has_one_object_per_line(arguments: tuple[str, ...], location: tuple[str, ...]) -> None:
    done = batchline(*arguments, "--drain", *location)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["worker started"]
    assert (lines[0]["level"], lines[0]["concurrency"]) == ("info", "auto")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", lines[0]["timestamp"])


def test_commands_of_groups_take_log_options_too(location: tuple[str, ...]) -> None:
    assert batchline("keys", "list", "-v", "--log-json", *location).returncode == 0


@pytest.mark.parametrize("name", ["run", "worker", "list", "prune"])
def test_help_groups_options_and_has_no_types_of_flags(name: str) -> None:
    text = CliRunner().invoke(command_line([name]), [name, "--help"], env={"COLUMNS": "80"}).stdout
    assert all(f"─ {panel} ─" in text for panel in ("Options", "Database and files", "Log"))
    assert "<bool>" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_help_has_panels_of_commands_and_examples() -> None:
    text = CliRunner().invoke(command_line([]), ["--help"], env={"COLUMNS": "80"}).stdout
    panels = re.findall(r"─ (.+?) ─", text)
    assert panels == [
        *("Options", "Log", "Run batches", "Look at batches and change them"),
        *("Governed operations", "Set up and check"),
    ]
    assert "     batchline run prompts.jsonl --upstream http://127.0.0.1:8000/v1" in text


@pytest.mark.parametrize(
    ("line", "number", "expected"),
    [
        ("batchline pru", "1", ["prune"]),
        ("batchline prune --old", "2", ["--older-than"]),
        ("batchline keys cr", "2", ["create"]),
        ("batchline worker --log", "2", ["--log-json"]),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, number: str, expected: list[str]) -> None:
    done = batchline(_BATCHLINE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=number)
    assert done.stdout.split() == expected, done.stderr


def test_names_of_commands_are_completed_without_loading_them() -> None:
    done = batchline(
        _BATCHLINE_COMPLETE="complete_bash",
        COMP_WORDS="batchline s",
        COMP_CWORD="1",
        PYTHONPROFILEIMPORTTIME="1",
    )
    found = sorted(done.stdout.split())
    assert found == ["schedules", "serve", "settings", "simulate", "status", "submit"]
    assert "batchline.cli.commands" not in done.stderr


def test_the_script_for_completion_is_printed() -> None:
    done = batchline("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_BATCHLINE_COMPLETE=complete_bash" in done.stdout


def test_a_worker_reports_what_it_does_and_at_the_end_what_it_has_done(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 200)
    with simulated("--latency", "100") as upstream:
        submit(inputs, upstream.url, *location)
        process = start("worker", "-c", "4", *location)
        assert process.stdout is not None
        first = process.stdout.readline()
        said, _ = kill(process, signal.SIGINT)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  \d+ claimed  \d+ completed  0 failed in 2 s  [\d.]+/s  4 in flight"
        r"  \d+ done in total"
        r"  http://127\.0\.0\.1:\d+: 4 of 4 in flight(, p50 \d+ ms)?\n",
        first,
    )
    assert re.fullmatch(r"worked on \d+ items: \d+ completed, 0 failed", said.splitlines()[-1])


def test_a_quiet_worker_prints_nothing_and_one_with_json_one_document(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 100)
    with simulated("--latency", "100") as upstream:
        submit(inputs, upstream.url, *location)
        quiet = batchline("worker", "--drain", "-q", "-c", "4", *location)
        submit(inputs, upstream.url, *location)
        documented = batchline("worker", "--drain", "--json", "-c", "4", *location)
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("", "", 0)
    assert json.loads(documented.stdout) == {"claimed": 100, "completed": 100, "failed": 0, "held": []}


def test_an_idle_worker_reports_nothing(location: tuple[str, ...]) -> None:
    done = batchline("worker", "--max-seconds", "5", *location)
    assert done.stdout == "worked on 0 items: 0 completed, 0 failed\n"


def test_the_worker_of_a_server_logs_as_the_server_does(tmp_path: Path, location: tuple[str, ...]) -> None:
    process = start("serve", "--port", "0", "--no-auth", "-v", "--log-json", *location)
    assert process.stderr is not None
    events: list[str] = []

    def worker_started() -> bool:
        assert process.stderr is not None
        events.append(json.loads(process.stderr.readline())["event"])
        return "worker started" in events

    try:
        wait_for("the worker's first line", worker_started)
    finally:
        kill(process, signal.SIGTERM)

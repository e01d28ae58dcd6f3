"""What people see while a batch runs: on terminals of any width, and in logs."""

import re
from pathlib import Path

import pytest

from tests.support.processes import batchline, simulated, start, wait_for_executions, write_requests
from tests.support.terminals import Terminal, on_terminal

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def masked(lines: list[str]) -> list[str]:
    """Numbers that differ from run to run, and the bar, are replaced."""
    text = re.sub(r"batch_[0-9a-f]{32}", "batch_ID", "\n".join(lines))
    text = re.sub(r"[━╸╺]+", "━", text)
    return re.sub(r"\d[\d,.]*", "9", text).split("\n")


def with_facts(lines: list[str]) -> bool:
    """Answers have come, and requests are in flight."""
    text = "\n".join(lines)
    return all(fact in text for fact in (" s left", "p95", "oldest")) and "of 2" in lines[-1]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_live_area_fits_the_terminal_and_says_why_it_is_not_faster(
    tmp_path: Path, location: tuple[str, ...], columns: int
) -> None:
    inputs = write_requests(tmp_path / "prompts.jsonl", 40)
    expected = {
        80: [
            "batch_ID: 9 lines",
            "prompts.jsonl  ━  9 of 9  9 %",
            "9/s  9 s left  9 in flight  9 retrying  9 failed",
            "p9 9 ms  p9 9 ms  oldest 9 ms  9 tokens",
            "9 of 9 in flight, p9 9 ms",
        ],
        200: [
            "batch_ID: 9 lines",
            "prompts.jsonl  ━  9 of 9  9 %",
            "9/s  9 s left  9 in flight  9 retrying  9 failed  p9 9 ms  p9 9 ms  oldest 9 ms  9 tokens",
            "9 of 9 in flight, p9 9 ms",
        ],
    }
    with simulated("--latency", "700") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "2", *location)
        with on_terminal(*command, columns=columns) as terminal:
            seen = terminal.wait_until("all facts", with_facts)
            assert masked(seen) == expected[columns]
            bar = next(line for line in seen if line.startswith("prompts.jsonl"))
            assert len(bar) == columns, "the bar is as wide as the terminal"
            terminal.press_ctrl_c()
            ended = terminal.until_ended()
    assert terminal.process.returncode == 130
    text = "".join(ended)
    assert len(re.findall(r"batch_[0-9a-f]{32}", text)) == 2, "at the start and at the end"
    assert text.count("prompts.jsonl  ━") == 1, "nothing has broken the live area"
    assert [line for line in ended if line.startswith("stopping:")], "above the live area"
    assert ended.index(next(line for line in ended if line.startswith("stopping:"))) < next(
        number for number, line in enumerate(ended) if line.startswith("prompts.jsonl")
    )


def test_the_final_screen_has_the_batch_id_and_100_percent(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with (
        simulated() as upstream,
        on_terminal("run", str(inputs), "--upstream", upstream.url, *location) as terminal,
    ):
        ended = terminal.until_ended()
    assert terminal.process.returncode == 0
    assert ended[1].startswith("in.jsonl  ━")
    assert ended[1].endswith("20 of 20  100 %")
    assert "completed: 20 of 20 completed" in "".join(ended)
    assert len(re.findall(r"batch_[0-9a-f]{32}", "".join(ended))) == 2


def test_log_lines_appear_above_the_live_area(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 60)
    with (
        simulated("--latency", "300") as upstream,
        on_terminal("-v", "run", str(inputs), "--upstream", upstream.url, "-c", "4", *location) as terminal,
    ):
        seen = terminal.wait_until("a log line", lambda lines: any("claimed" in line for line in lines))
        seen = terminal.wait_until("the area below", lambda lines: lines[-1].startswith("4 of 4 in flight"))
    assert sum(line.startswith("in.jsonl  ━") for line in seen) == 1
    assert next(i for i, line in enumerate(seen) if "claimed" in line) < next(
        i for i, line in enumerate(seen) if line.startswith("in.jsonl  ━")
    )


def test_an_upstream_that_cannot_be_reached_is_named_with_the_time_of_the_next_try(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 200)

    def says_so(lines: list[str]) -> bool:
        return bool(re.search(r"^upstream unreachable for \d+ s, (next try in \d+ s|trying)", lines[-1]))

    with simulated("--latency", "100") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location)
        with on_terminal(*command) as terminal:
            wait_for_executions(upstream, 10)
            upstream.process.kill()
            seen = terminal.wait_until("the outage", says_so)
    assert sum(line.startswith("in.jsonl  ━") for line in seen) == 1


def test_an_upstream_that_refuses_more_is_named_with_its_rate(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 400)
    with (
        simulated("--refuse-rate", "0.5") as upstream,
        on_terminal("run", str(inputs), "--upstream", upstream.url, *location) as terminal,
    ):
        terminal.wait_until("the rate", lambda lines: re.search(r"^upstream limits to [\d.,]+/s", lines[-1]))


def test_without_colour_there_is_none(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with (
        simulated() as upstream,
        on_terminal("run", str(inputs), "--upstream", upstream.url, *location, NO_COLOR="1") as terminal,
    ):
        terminal.until_ended()
    assert not re.search(rb"\x1b\[[0-9;]*(3[0-9]|4[0-9]|38;5)[0-9;]*m", terminal.raw)


def test_the_start_of_the_database_is_said_and_erased(tmp_path: Path) -> None:
    def said(lines: list[str]) -> bool:
        return any(line.startswith("starting PostgreSQL") for line in lines)

    with on_terminal("list", "--data-dir", str(tmp_path / "data")) as terminal:
        terminal.wait_until("the message", said)
        assert not said(terminal.until_ended())
    assert terminal.process.returncode == 0


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_log_has_lines_and_no_control_characters(
    tmp_path: Path, location: tuple[str, ...], environment: dict[str, str]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    with simulated("--latency", "20") as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location, **environment)
    assert done.returncode == 0
    assert not CONTROL.search(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"batch_[0-9a-f]{32}: 30 lines", lines[0])
    assert lines[1].startswith("in.jsonl: 0 of 30 done (0.0 %)  0/s")
    assert lines[-2].startswith("in.jsonl: 30 of 30 done (100 %)  completed")
    assert re.match(r"batch_[0-9a-f]{32} completed: 30 of 30 completed", lines[-1])


def test_in_ci_even_a_terminal_gets_lines_only(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with (
        simulated() as upstream,
        on_terminal(
            "run", str(inputs), "--upstream", upstream.url, *location, CI="true", NO_COLOR="1"
        ) as terminal,
    ):
        terminal.until_ended()
    assert b"\x1b" not in terminal.raw


def test_with_json_stdout_is_one_document_and_stderr_is_empty(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *location)
    assert done.stdout.startswith("{")
    assert done.stderr == ""


def last_screen(terminal: Terminal) -> str:
    return "\n".join(terminal.until_ended())


def test_watch_shows_the_batch_of_another_process(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 60)
    with simulated("--latency", "100") as upstream:
        running = start("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location)
        wait_for_executions(upstream, 8)
        with on_terminal("watch", *location) as terminal:
            seen = last_screen(terminal)
        running.communicate(timeout=60)
    assert re.search(r"━  60 of 60  100 %\ncompleted", seen)

"""`--steps` of `run` and `submit`, with real processes."""

import json
from pathlib import Path

import pytest

from tests.support.processes import batchline, read_lines, simulated, status, write_requests

STEPS = ("--steps", "1,2,4,...")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def test_a_run_in_steps_sends_every_line_once_and_in_order(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 60)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *STEPS, "--step-pause", "0.1s", *location)
        done = batchline(*command)
        seen = upstream.stats()
    assert done.returncode == 0, done.stderr
    assert [line["custom_id"] for line in read_lines(tmp_path / "in.output.jsonl")] == [
        f"q-{n}" for n in range(60)
    ]
    assert (seen["executed"], seen["keys_executed_twice"]) == (60, 0)


def test_a_run_stops_in_the_first_step_that_fails_and_goes_on_with_the_next(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 50, models=("none",))
    with simulated("--only-listed") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *STEPS, *location)
        stopped = batchline(*command)
        first = upstream.stats()["requests"]
        again = json.loads(batchline(*command, "--json").stdout)
        second = upstream.stats()["requests"]
        ended = batchline(*command, "--max-failed", "none")
    assert stopped.returncode == 3
    assert "paused: 1 lines have failed, and 0 may (--max-failed); 1 of 50 done" in stopped.stderr
    assert first == 1, "the one line of the first step"
    assert again["paused"] == {"rule": "max_failed", "threshold": 0}
    assert 1 < second <= 3
    assert ended.returncode == 1, "all lines have failed"


def test_submit_runs_in_steps_and_status_says_where_it_stands(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated() as upstream:
        options = ("--upstream", upstream.url, "--steps", "5", "--step-pause", "1h", *location)
        batch = batchline("submit", str(inputs), *options).stdout.split()[0]
        running = batchline("status", batch, *location)
        assert "step 1: 5 of 20 lines may run so far" in running.stdout
        assert batchline("worker", "--drain", *location).returncode == 0
        assert upstream.stats()["executed"] == 5
    waiting = batchline("status", batch, *location)
    assert "step 1 has ended; the next step begins in 59" in waiting.stdout.replace("1h", "59")
    steps = status(batch, *location)["steps"]
    assert (steps["sizes"], steps["pause_seconds"], steps["step"]) == ("5", 3600.0, 1)
    assert steps["next_step_at"] is not None


def test_a_sample_is_followed_by_steps(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 40)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--sample", "5", *STEPS, *location)
        stopped = batchline(*command)
        assert (stopped.returncode, upstream.stats()["executed"]) == (3, 5), stopped.stderr
        assert batchline(*command, "--yes").returncode == 0
        seen = upstream.stats()
    assert (seen["executed"], seen["keys_executed_twice"]) == (40, 0)
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 40


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "some"), "--steps 'some': give sizes such as 1,2,4,..."),
        (("--steps", "0"), "--steps '0': give sizes"),
        (("--step-pause", "5m"), "give --steps, too"),
        (("--steps", "1", "--step-pause", "soon"), "--step-pause 'soon': give a number and a unit"),
        (("--steps", "1", "--step-pause", "8d"), "give at most 7d"),
    ],
)
def test_wrong_steps_are_refused_before_anything_is_sent(
    tmp_path: Path, location: tuple[str, ...], command: str, options: tuple[str, ...], message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    refused = batchline(command, str(inputs), "--upstream", "http://localhost:1", *options, *location)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())

"""Prices and caps with real processes: what batches cost, where they pause, and how they continue."""

import json
import os
import pty
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import (
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    status,
    wait_for_executions,
    working,
)
from tests.support.waiting import LIMIT, wait_for

# One token of output costs a tenth of a cent, and input nothing: each request costs exactly what is reserved.
EACH = 0.001
PRICES = '[[prices]]\nmodel = "sim-small"\ninput = 0\noutput = 1000\n'


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def config(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "batchline.toml"
    path.write_text(PRICES)
    return ("--config", str(path))


def requests(path: Path, count: int, **more: Any) -> Path:
    with path.open("w") as stream:
        for number in range(count):
            body = {"model": "sim-small", "messages": [{"role": "user", "content": f"Say {number}."}], **more}
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def test_a_run_says_what_it_has_cost(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 20, max_tokens=1)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *config, *location)
        again = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *config, *location)
    assert done.returncode == 0, done.stderr
    assert "spent: $0.02\n" in done.stdout
    document = json.loads(again.stdout)
    assert document["cost"]["spent"] == document["summary"]["cost"]["spent"] == 0.02
    batch = str(document["batch_id"])
    assert status(batch, *location)["cost"]["spent"] == 0.02
    assert "spent: $0.02\n" in batchline("status", batch, *location).stdout


def test_a_run_pauses_at_its_cap_and_continues_with_a_higher_one(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *config, *location)
        paused = batchline(*command, "--max-cost", "0.0125")
        sent = upstream.stats()["executed"]
        as_json = batchline(*command, "--max-cost", "0.0125", "--json")
        done = batchline(*command, "--max-cost", "1")
        seen = upstream.stats()
    assert (paused.returncode, sent) == (3, 12)
    assert "paused: the next request could exceed --max-cost $0.0125; 12 of 30 done" in paused.stderr
    assert "give a higher --max-cost to\n  batchline run" in paused.stderr
    assert not (tmp_path / "in.output.jsonl.part").exists()

    document = json.loads(as_json.stdout)
    assert (as_json.returncode, document["status"], document["interrupted"]) == (3, "paused", False)
    assert document["paused"] == {"rule": "max_cost", "threshold": 0.0125}

    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 30
    assert (seen["executed"], seen["keys_executed_twice"]) == (30, 0)


def test_watch_and_status_say_that_a_cap_has_paused_a_batch_and_how_to_continue(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        options = ("--upstream", upstream.url, "--max-cost", "0.0125", *config, *location)
        batch = json.loads(batchline("submit", str(inputs), *options, "--json").stdout)["id"]
        watching = start("watch", batch, *location)
        assert batchline("worker", "--drain", *location).returncode == 0
        output, _ = watching.communicate(timeout=LIMIT)
    message = (
        "  paused: the next request could exceed --max-cost $0.0125; 12 of 30 done, nothing is lost;"
        f" to continue, give a higher --max-cost to\n    batchline resume {batch}\n"
    )
    assert watching.returncode == 3
    assert message in output
    assert "spent: $0.012 of at most $0.0125" in output
    assert message in batchline("status", batch, *location).stdout


def test_a_resumed_batch_of_run_is_continued_with_the_cap_that_resume_has_set(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *config, *location)
        assert batchline(*command, "--max-cost", "0.0125").returncode == 3
        displayed = batchline("status", "@1", *location).stdout
        resumed = batchline("resume", "@1", "--max-cost", "0.05", *location).stdout
        assert batchline(*command, "--max-cost", "0.05").returncode == 0
    assert displayed.endswith(
        f"a higher --max-cost to\n    batchline {shlex.join(command)} --max-cost 0.0125\n"
    )
    assert f"continue with\n    batchline {shlex.join(command)} --max-cost 0.05\n" in resumed


def test_answers_that_are_reused_cost_nothing_and_need_no_budget(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 20, max_tokens=1)
    edited = requests(tmp_path / "edited.jsonl", 25, max_tokens=1)
    with simulated() as upstream:
        options = ("--upstream", upstream.url, "--json", *config, *location)
        first = json.loads(batchline("run", str(inputs), *options).stdout)
        second = json.loads(batchline("run", str(edited), *options, "--max-cost", "0.005").stdout)
        assert upstream.stats()["executed"] == 25
    assert (first["cost"]["spent"], first["reused"]) == (0.02, 0)
    assert (second["status"], second["cost"]["spent"], second["reused"]) == ("completed", 0.005, 20)


def test_a_sample_runs_lines_that_have_no_answer_to_reuse(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    some = requests(tmp_path / "in.jsonl", 20, max_tokens=1)
    more = requests(tmp_path / "more.jsonl", 60, max_tokens=1)
    with simulated() as upstream:
        options = ("--upstream", upstream.url, *config, *location)
        assert batchline("run", str(some), *options).returncode == 0
        stopped = batchline("run", str(more), "--sample", "10", *options)
        assert (stopped.returncode, upstream.stats()["executed"]) == (3, 30)
        assert "sample: 10 lines done; forecast for the other 30:" in stopped.stdout
        assert "cost: about $0.03 ($0.03 to $0.03)" in stopped.stdout
        assert "paused: only the sample was run; 30 of 60 done" in stopped.stderr
        assert batchline("run", str(more), "--sample", "10", "--yes", *options).returncode == 0
        assert upstream.stats()["executed"] == 60
    assert len(read_lines(tmp_path / "more.output.jsonl")) == 60


def test_a_cap_on_tokens_needs_no_price(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        paused = batchline(*command, "--max-tokens", "100", "--json")
    document = json.loads(paused.stdout)
    assert (paused.returncode, document["paused"]) == (3, {"rule": "max_tokens", "threshold": 100})
    assert 0 < document["input_tokens"] + document["output_tokens"] <= 100
    assert document["cost"]["spent"] is None


def test_a_cap_on_the_cost_needs_a_price_for_each_model(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = requests(tmp_path / "in.jsonl", 3)
    with simulated() as upstream:
        refused = batchline("run", str(inputs), "--upstream", upstream.url, "--max-cost", "5", *location)
        assert upstream.stats()["requests"] == 0
    assert refused.returncode == 2
    assert 'there is no price for model "sim-small"; add [[prices]] to batchline.toml' in refused.stderr


def test_an_overshoot_is_reported(tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]) -> None:
    """Without a limit in the request, the setting says what is reserved; the upstream gives more."""
    inputs = requests(tmp_path / "in.jsonl", 1)
    Path(config[1]).write_text(PRICES + "[spending]\noutput_tokens = 1\n")
    with simulated() as upstream:
        done = batchline(
            "run",
            str(inputs),
            "--upstream",
            upstream.url,
            "--max-cost",
            "0.001",
            "--json",
            *config,
            *location,
        )
        displayed = batchline("status", json.loads(done.stdout)["batch_id"], *location).stdout
    cost = json.loads(done.stdout)["cost"]
    assert cost["spent"] > 0.001
    assert cost["overshoot"] == pytest.approx(cost["spent"] - 0.001)
    assert "the cap is exceeded by $" in displayed


def test_two_workers_of_which_one_is_killed_keep_to_the_cap(
    database_url: str, tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    """The upstream ignores idempotency keys: what is sent again is charged again."""
    inputs = requests(tmp_path / "in.jsonl", 400, max_tokens=1)
    with simulated("--latency", "20", "--keyless") as upstream:
        submitted = batchline(
            "submit",
            str(inputs),
            "--upstream",
            upstream.url,
            "--max-cost",
            "0.15",
            "--json",
            *config,
            *location,
        )
        assert submitted.returncode == 0, submitted.stderr
        batch = json.loads(submitted.stdout)["id"]
        options = ("--lease", "2", "-c", "8")
        with (
            working(database_url, tmp_path / "data", *options) as first,
            working(database_url, tmp_path / "data", *options),
        ):
            wait_for_executions(upstream, 60)
            kill(first)
            wait_for("a pause", lambda: status(batch, *location)["status"] == "paused")
        executed = upstream.stats()["executed"]
        found = status(batch, *location)
        cost = found["cost"]
        assert executed <= 150
        assert found["paused"] == {"rule": "max_cost", "threshold": 0.15}
        assert cost["spent"] == pytest.approx(EACH * found["request_counts"]["completed"])
        # All that may have been charged is accounted for, and no request more fits.
        assert cost["spent"] + cost["unconfirmed"] == pytest.approx(0.15)
        assert executed * EACH <= cost["spent"] + cost["unconfirmed"] + 1e-9

        resumed = batchline("resume", batch, "--max-cost", "1", *location)
        assert resumed.returncode == 0, resumed.stderr
        assert batchline("worker", "--drain", *location).returncode == 0
    assert status(batch, *location)["request_counts"]["completed"] == 400
    assert batchline("doctor", *location).returncode == 0


@pytest.mark.parametrize("given", ["0", "-1", "nan", "x"])
def test_a_cap_must_be_a_number_above_zero(tmp_path: Path, location: tuple[str, ...], given: str) -> None:
    inputs = requests(tmp_path / "in.jsonl", 1)
    refused = batchline(
        "run", str(inputs), "--upstream", "http://localhost:1", "--max-cost", given, *location
    )
    assert refused.returncode == 2
    assert "must be a number of dollars above 0" in refused.stderr


def test_a_mistake_in_the_prices_names_its_line(tmp_path: Path, location: tuple[str, ...]) -> None:
    (tmp_path / "b.toml").write_text('[[prices]]\nmodel = "m"\ninput = -1\n')
    inputs = requests(tmp_path / "in.jsonl", 1)
    command = ("run", str(inputs), "--upstream", "http://localhost:1", "--config", str(tmp_path / "b.toml"))
    refused = batchline(*command, *location)
    assert refused.returncode == 2
    assert "b.toml, line 3: prices[0].input: must be a number from 0 to" in refused.stderr


# Forecasts


def test_an_estimate_sends_nothing_and_learns_from_earlier_runs(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 50, max_tokens=5)
    rough = batchline("run", str(inputs), "--estimate", "--json", *config, *location)
    assert rough.returncode == 0, rough.stderr
    forecast = json.loads(rough.stdout)["forecast"]
    assert (forecast["lines"], forecast["rough"], forecast["learned_from"]) == (50, True, 0)
    assert forecast["cost"]["high"] == pytest.approx(50 * 5 * EACH)

    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *config, *location)
    used = json.loads(done.stdout)
    displayed = batchline("run", str(inputs), "--estimate", *config, *location).stdout
    assert "estimate: 50 lines; rough, nothing was sent" in displayed
    assert "bytes per token: learned from 50 earlier requests" in displayed
    again = json.loads(batchline("run", str(inputs), "--estimate", "--json", *config, *location).stdout)
    tokens = again["forecast"]["input_tokens"]
    assert tokens["likely"] == pytest.approx(used["input_tokens"], rel=0.05)
    assert json.loads(batchline("list", "--json", *location).stdout)["data"][1:] == [], "one batch"


def test_a_sample_stops_without_a_terminal_and_the_rest_sends_nothing_twice(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 200, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--sample", "20", *config, *location)
        stopped = batchline(*command)
        sent = upstream.stats()["executed"]
        as_json = json.loads(batchline(*command, "--json").stdout)
        done = batchline(*command, "--yes")
        seen = upstream.stats()
    assert (stopped.returncode, sent) == (3, 20)
    assert "sample: 20 lines done; forecast for the other 180:" in stopped.stdout
    assert "  cost: about $0.18 ($0.18 to $0.18)\n" in stopped.stdout
    assert "to run the rest\n  batchline run" in stopped.stderr
    assert "--yes" in stopped.stderr

    assert as_json["forecast"]["lines"] == 180
    assert (as_json["status"], as_json["interrupted"]) == ("paused", False)
    assert as_json["paused"] == {"rule": "sample", "threshold": None}
    assert as_json["resume"].endswith(" --yes")

    assert done.returncode == 0, done.stderr
    assert [line["custom_id"] for line in read_lines(tmp_path / "in.output.jsonl")] == [
        f"q-{n}" for n in range(200)
    ]
    assert (seen["executed"], seen["keys_executed_twice"]) == (200, 0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sample_is_continued_by_the_same_command(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...], how: signal.Signals
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 200, max_tokens=1)
    with simulated("--latency", "100") as upstream:
        command = (
            "run",
            str(inputs),
            "--upstream",
            upstream.url,
            "--sample",
            "40",
            "-c",
            "2",
            *config,
            *location,
        )
        process = start(*command)
        wait_for_executions(upstream, 4)
        kill(process, how)
        continued = batchline(*command)
        seen = upstream.stats()
    assert continued.returncode == 3, continued.stderr
    assert "sample: 40 lines done; forecast for the other 160:" in continued.stdout
    assert (seen["executed"], seen["keys_executed_twice"]) == (40, 0)


def test_an_interrupted_sample_gives_no_forecast_and_says_how_to_continue_the_sample(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 200, max_tokens=1)
    # Slow enough that the sample is not done, however late the signal comes.
    with simulated("--latency", "300") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "1", *location, "--sample", "100")
        process = start(*command)
        wait_for_executions(upstream, 2)
        said, errors = kill(process, signal.SIGINT)
        displayed = batchline("status", "@1", *location).stdout
        watching = start("watch", "@1", *location)
        assert watching.stdout is not None
        watched = watching.stdout.readline()
        kill(watching)
    assert process.returncode == 130
    assert " of 200 done (0.0 %)  sample  " in said
    assert "forecast" not in said
    assert " interrupted: " in errors
    assert errors.endswith(f"nothing is lost; continue with\n  batchline {shlex.join(command)}\n")
    assert f"continue with\n    batchline {shlex.join(command)}\n" in displayed
    assert "only the sample was run" not in displayed
    assert "left by run: nothing works on it; `batchline status` says how to continue it" in watched


def test_a_run_that_is_interrupted_after_its_sample_is_continued_by_the_same_command(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 60, max_tokens=1)
    with simulated("--latency", "100") as upstream:
        plain = ("run", str(inputs), "--upstream", upstream.url, *location)
        command = (*plain, "--sample", "4", "--yes")
        process = start(*command, "-c", "1")
        wait_for_executions(upstream, 8)
        _, errors = kill(process, signal.SIGINT)
        displayed = batchline("status", "@1", *location).stdout
        refused = batchline(*plain, "--sample", "4")
        continued = batchline(*command)
        seen = upstream.stats()
    assert process.returncode == 130
    # `--sample` is for a batch that has not begun.
    assert errors.endswith(f"continue with\n  batchline {shlex.join(plain)} -c 1\n")
    assert f"continue with\n    batchline {shlex.join(plain)} -c 1\n" in displayed
    assert refused.returncode == 2
    assert "lines are done; leave it out to continue" in refused.stderr
    assert continued.returncode == 0, continued.stderr
    assert (seen["executed"], seen["keys_executed_twice"]) == (60, 0)


def test_status_of_a_sample_names_the_run_command_that_runs_the_rest(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 20, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command, "--sample", "4").returncode == 3
        displayed = batchline("status", "@1", *location).stdout
        resumed = batchline("resume", "@1", *location).stdout
        assert batchline(*command).returncode == 0
    words = shlex.join(command)
    assert displayed.endswith(f"to run the rest\n    batchline {words} --sample 4 --yes\n")
    # Only its own `run` works on it, so that a resume alone does nothing.
    assert (
        "  no process works on it, unless its `run` does; continue with\n"
        f"    batchline {words}\n  or with `batchline worker --unfinished-runs`\n"
    ) in resumed


def test_watch_waits_until_the_sample_of_another_process_is_done(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 100, max_tokens=1)
    with simulated("--latency", "100") as upstream:
        command = (
            "run",
            str(inputs),
            "--upstream",
            upstream.url,
            "--sample",
            "40",
            "-c",
            "2",
            *config,
            *location,
        )
        process = start(*command)
        wait_for_executions(upstream, 1)
        watched = batchline("watch", "--json", *location)
        process.communicate(timeout=LIMIT)
    assert watched.returncode == 3, watched.stderr
    document = json.loads(watched.stdout)
    assert (document["status"], document["paused"]["rule"]) == ("paused", "sample")
    assert document["request_counts"]["completed"] == 40


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_cap_on_tokens_beyond_all_numbers_is_refused(
    tmp_path: Path, location: tuple[str, ...], command: str
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 1)
    refused = batchline(
        command, str(inputs), "--upstream", "http://localhost:1", "--max-tokens", str(10**19), *location
    )
    assert refused.returncode == 2
    assert "--max-tokens" in refused.stderr


def test_a_sample_keeps_to_a_cap(tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]) -> None:
    inputs = requests(tmp_path / "in.jsonl", 100, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--sample", "20", *config, *location)
        paused = batchline(*command, "--max-cost", "0.005")
        sent = upstream.stats()["executed"]
    assert (paused.returncode, sent) == (3, 5)
    assert "could exceed --max-cost" in paused.stderr


def test_a_sample_of_a_batch_that_has_begun_is_refused(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *config, *location)
        assert batchline(*command, "--max-cost", "0.005").returncode == 3
        refused = batchline(*command, "--sample", "5")
    assert refused.returncode == 2
    assert "--sample is for a batch that has not begun: 5 of 30 lines are done" in refused.stderr


@pytest.mark.parametrize(
    ("answer", "code", "sent"),
    [
        pytest.param("y\n", 0, 30, id="yes"),
        pytest.param("maybe\nYes\n", 0, 30, id="yes, after something else"),
        pytest.param("n\n", 3, 5, id="no"),
        pytest.param("\x03", 3, 5, id="Ctrl-C"),
        pytest.param("\x04", 3, 5, id="Ctrl-D"),
    ],
)
def test_a_terminal_is_asked_after_the_sample(
    tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...], answer: str, code: int, sent: int
) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--sample", "5", *config, *location)
        displayed, exit_code = on_terminal(command, "run the rest?", answer)
        assert upstream.stats()["executed"] == sent
    assert exit_code == code, displayed
    assert "forecast for the other 25" in displayed


def on_terminal(command: tuple[str, ...], question: str, answer: str) -> tuple[str, int]:
    """Run a command on a terminal, and answer its question; what it showed, and its exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "batchline", *command])
    displayed, answered = b"", False
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            # The other side is closed.
            break
        if not piece:
            break
        displayed += piece
        if not answered and question.encode() in displayed:
            answered = True
            os.write(terminal, answer.encode())
    os.close(terminal)
    _, status_word = os.waitpid(process, 0)
    return displayed.decode(errors="replace"), os.waitstatus_to_exitcode(status_word)

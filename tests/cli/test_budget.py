"""Prices and caps with real processes: what batches cost, where they pause, and how they continue."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import (
    batchline,
    kill,
    read_lines,
    simulated,
    status,
    wait_for_executions,
    working,
)
from tests.support.waiting import wait_for

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


def test_a_run_says_what_it_has_cost(tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]) -> None:
    inputs = requests(tmp_path / "in.jsonl", 20, max_tokens=1)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *config, *location)
        again = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *config, *location)
    assert done.returncode == 0, done.stderr
    assert "cost: $0.0200\n" in done.stdout
    document = json.loads(again.stdout)
    assert document["cost"]["spent"] == document["summary"]["cost"]["spent"] == 0.02
    batch = str(document["batch_id"])
    assert status(batch, *location)["cost"]["spent"] == 0.02
    assert "cost: $0.0200\n" in batchline("status", batch, *location).stdout


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
    assert document["cost"]["paused_by"] == "max_cost"

    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 30
    assert (seen["executed"], seen["keys_executed_twice"]) == (30, 0)


def test_a_cap_on_tokens_needs_no_price(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = requests(tmp_path / "in.jsonl", 30, max_tokens=1)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        paused = batchline(*command, "--max-tokens", "100", "--json")
    document = json.loads(paused.stdout)
    assert (paused.returncode, document["cost"]["paused_by"]) == (3, "max_tokens")
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
    """Without a limit in the request, the setting says how much output is reserved; the upstream gives more."""
    inputs = requests(tmp_path / "in.jsonl", 1)
    Path(config[1]).write_text(PRICES + "[spending]\noutput_tokens = 1\n")
    with simulated() as upstream:
        done = batchline(
            "run", str(inputs), "--upstream", upstream.url, "--max-cost", "0.001", "--json", *config, *location
        )
        shown = batchline("status", json.loads(done.stdout)["batch_id"], *location).stdout
    cost = json.loads(done.stdout)["cost"]
    assert cost["spent"] > 0.001
    assert cost["overshoot"] == pytest.approx(cost["spent"] - 0.001)
    assert "the cap is exceeded by $" in shown


def test_two_workers_of_which_one_is_killed_keep_to_the_cap(
    database_url: str, tmp_path: Path, location: tuple[str, ...], config: tuple[str, ...]
) -> None:
    """The upstream ignores idempotency keys: what is sent again is charged again."""
    inputs = requests(tmp_path / "in.jsonl", 400, max_tokens=1)
    with simulated("--latency", "20", "--keyless") as upstream:
        submitted = batchline(
            "submit", str(inputs), "--upstream", upstream.url, "--max-cost", "0.15", "--json", *config, *location
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
        assert cost["paused_by"] == "max_cost"
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
    refused = batchline("run", str(inputs), "--upstream", "http://localhost:1", "--max-cost", given, *location)
    assert refused.returncode == 2
    assert "must be a number of dollars above 0" in refused.stderr


def test_a_mistake_in_the_prices_names_its_line(tmp_path: Path, location: tuple[str, ...]) -> None:
    (tmp_path / "b.toml").write_text('[[prices]]\nmodel = "m"\ninput = -1\n')
    inputs = requests(tmp_path / "in.jsonl", 1)
    command = ("run", str(inputs), "--upstream", "http://localhost:1", "--config", str(tmp_path / "b.toml"))
    refused = batchline(*command, *location)
    assert refused.returncode == 2
    assert "b.toml, line 3: prices[0].input: must be a number from 0 to" in refused.stderr

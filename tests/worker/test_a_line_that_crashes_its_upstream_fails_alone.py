"""An upstream that dies whenever a certain line arrives, and is started again: that line fails, with a code
that says so, and all others complete."""

from pathlib import Path

import pytest

from tests.support.processes import batchline, read_lines, start, status, submit, write_requests
from tests.support.restarted_upstream import restarted
from tests.support.waiting import LIMIT, wait_for

KILLER = "Say 137."


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.mark.attack
@pytest.mark.parametrize("concurrency", ["1", "32"])
def test_the_killer_fails_and_all_others_complete(
    tmp_path: Path, location: tuple[str, ...], concurrency: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with restarted("--crash-on", KILLER, "--latency", "20") as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "-c", concurrency, *location)
        assert upstream.ended <= 20
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 299
    (error,) = read_lines(tmp_path / "in.output.errors.jsonl")
    assert error["custom_id"] == "q-137"
    assert error["error"]["code"] == "upstream_crashed"
    assert error["error"]["message"].startswith("The upstream crashed 4 times while it had this line")
    assert batchline("doctor", *location).returncode == 0


def drained(*options: str) -> int:
    """The exit code of a worker that drains. It waits for each of many restarts of the upstream."""
    worker = start("worker", "--drain", *options)
    worker.communicate(timeout=4 * LIMIT)
    return worker.returncode


@pytest.mark.attack
def test_after_a_retry_crashes_count_anew(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 140)
    with restarted("--crash-on", KILLER) as upstream:
        batch = submit(inputs, upstream.url, *location)
        for _ in range(2):
            before = upstream.ended
            assert drained("-c", "4", *location) == 0
            counts = status(batch, *location)["request_counts"]
            assert (counts["completed"], counts["failed"]) == (139, 1)
            assert before + 4 <= upstream.ended <= before + 20
            assert batchline("retry", batch, *location).returncode == 0
        before = upstream.ended
        with upstream.away("--latency", "1"):
            wait_for("its end", lambda: upstream.ended > before)
        assert drained(*location) == 0
    assert status(batch, *location)["request_counts"]["completed"] == 140

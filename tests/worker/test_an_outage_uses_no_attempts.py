"""An upstream whose process is killed and started again later: no line uses an attempt, and all complete."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes import batchline, logged, read_lines, write_requests
from tests.support.restarted_upstream import restarted
from tests.support.waiting import LIMIT, wait_for

LINES = 200
# Some requests hang, so it goes away while requests are in flight, however slow the machine is.
HANGS = ("--latency", "10", "--hang-rate", "0.05")


def logged_times(log: Path, event: str) -> int:
    complete = log.read_text().rpartition("\n")[0]
    return sum(json.loads(line)["event"] == event for line in complete.splitlines())


def was_logged(log: Path, event: str, times: int) -> bool:
    return logged_times(log, event) == times


@pytest.mark.attack
@pytest.mark.parametrize("concurrency", ["1", "16"])
def test_all_lines_complete_with_one_attempt_each(
    tmp_path: Path, database_url: str, concurrency: str
) -> None:
    inputs, log = write_requests(tmp_path / "in.jsonl", LINES), tmp_path / "log"
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    options = ("-c", concurrency, "--max-attempts", "1", "--verbose", "--log-json", *location)
    with (
        restarted(*HANGS) as upstream,
        logged(log, "run", str(inputs), "--upstream", upstream.url, *options) as process,
    ):
        for outages, then in ((1, HANGS), (2, ())):
            upstream.wait_for_hanging()
            with upstream.away(*then):
                wait_for("an outage", partial(was_logged, log, "upstream unreachable", outages))
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said + log.read_text()
    assert len(read_lines(tmp_path / "in.output.jsonl")) == LINES
    assert logged_times(log, "upstream crashed") == 2, "once per crash, however many lines it had"
    assert batchline("doctor", *location).returncode == 0

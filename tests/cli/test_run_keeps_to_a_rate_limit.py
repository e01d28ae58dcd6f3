"""`batchline run` against an upstream that limits its rate."""

from pathlib import Path

from tests.support.processes import batchline, simulated, write_requests


def test_a_limited_upstream_fails_no_line(tmp_path: Path, database_url: str) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 500)
    with simulated("--rate-limit", "100") as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url),
            *("--database", database_url, "--data-dir", str(tmp_path / "data")),
        )
        seen = upstream.stats()
    assert done.returncode == 0, (done.stdout, seen)
    assert (seen["executed"], seen["keys_executed_twice"]) == (500, 0)

"""A program with many calls, killed in the middle and started again, or started twice at once."""

import json
import subprocess
from pathlib import Path

import psycopg

from tests.support.processes import PYTHON, Upstream, kill, simulated
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT, wait_for

CALLS = 300


def program(database: str, folder: Path, upstream: Upstream) -> "subprocess.Popen[str]":
    arguments = ("tests.support.client_calls", database, str(folder / "data"), upstream.url, "n", str(CALLS))
    return subprocess.Popen(
        [PYTHON, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def answers_of(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    found: list[str] = json.loads(out)
    return found


def stored(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM batchline.results").fetchone()
        assert row is not None
        return int(row[0])


def test_a_killed_program_continues_and_sends_only_what_has_no_answer(
    database_url: str, tmp_path: Path
) -> None:
    with simulated("--latency", "100", "--concurrency", "10") as upstream:
        first = program(database_url, tmp_path, upstream)
        wait_for("some answers", lambda: stored(database_url) >= 30)
        kill(first)
        wait_for("no request in flight", lambda: upstream.stats()["in_flight"] == 0)
        before, sent = stored(database_url), int(upstream.stats()["requests"])
        assert 30 <= before < CALLS
        found = answers_of(program(database_url, tmp_path, upstream))
        seen = upstream.stats()
    assert len(found) == CALLS
    assert seen["requests"] - sent == CALLS - before
    assert (seen["executed"], seen["keys_executed_twice"]) == (CALLS, 0)


def test_two_programs_with_the_same_name_share_the_work(database_url: str, tmp_path: Path) -> None:
    with simulated("--latency", "20") as upstream:
        both = [program(database_url, tmp_path, upstream) for _ in range(2)]
        one, two = map(answers_of, both)
        executed = upstream.stats()["executed"]
    assert one == two
    assert executed == CALLS

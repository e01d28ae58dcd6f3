"""Pace: an upstream that limits its rate is asked no faster than it answers."""

from pathlib import Path

import pytest

from batchline.executors.pace import AnswerRate, Pace
from tests.processes import batchline, simulated, write_requests


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_turns_are_spread_at_less_than_the_rate_that_was_answered() -> None:
    pace = Pace(50, Time())
    waits = [pace.turn() for _ in range(41)]
    assert waits[0] == 0.0
    assert waits[-1] == pytest.approx(40 / (50 * 0.8))


def test_a_round_of_refusals_cuts_the_rate_once_and_the_next_round_again() -> None:
    time = Time()
    pace = Pace(100, time)
    for _ in range(20):
        pace.refused(0.0)
    pace.turn()
    assert pace.turn() == pytest.approx(1 / 80)
    for _ in range(60):
        pace.answered()
    time.now += 1.0
    pace.refused(0.0)
    pace.turn()
    assert pace.turn() == pytest.approx(1 / (60 * 0.8)), "by what was answered in that round"


def test_the_upstreams_own_word_is_waited_for() -> None:
    pace = Pace(100, Time())
    pace.refused(0.7)
    assert pace.turn() == pytest.approx(0.7)


def test_the_rate_grows_while_nothing_is_refused_and_is_forgotten_after_a_minute() -> None:
    time = Time()
    pace = Pace(100, time)
    time.now += 20
    pace.turn()
    assert pace.turn() == pytest.approx(1 / 160)
    assert not pace.over
    time.now += 41
    assert pace.over


def test_answers_are_counted_over_the_last_seconds() -> None:
    time = Time()
    answers = AnswerRate(time)
    for _ in range(300):
        time.now += 0.01
        answers.add()
    assert answers.per_second == pytest.approx(100, rel=0.05)


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

"""When the breaker of an upstream opens, and what closes it."""

import pytest

from batchline.upstreams.breaker import PATIENCE, Breaker, BreakerState, FailureStreak
from batchline.upstreams.retry import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_breaker(clock: Clock) -> Breaker:
    return Breaker(Backoff(1.0, 8.0), clock, lambda: 1.0)


def failures(count: int, seconds: float, lines: int, in_flight: int) -> bool:
    """Whether so many failures in a row, spread over this time, open it."""
    streak = FailureStreak(clock := Clock())
    opened = False
    for number in range(count):
        opened = streak.failed(f"line {number % lines}", in_flight)
        clock.now += seconds / (count - 1)
    return opened


@pytest.mark.parametrize(
    ("count", "seconds", "lines", "in_flight", "opens"),
    [
        (10, 2.5, 10, 64, True),
        (9, 2.5, 9, 64, False),
        (10, 1.0, 10, 64, False),
        (10, 2.5, 1, 64, False),
        (3, 3.1, 2, 1, True),
        (2, 5.0, 2, 1, False),
        (4, 3.1, 2, 2, True),
        (3, 3.1, 2, 2, False),
    ],
    ids=[
        "ten of ten lines",
        "too few",
        "too soon",
        "one bad line",
        "few in flight",
        "two say little",
        "two in flight",
        "three of two",
    ],
)
def test_it_opens_after_enough_failures_of_several_lines_over_some_time(
    count: int, seconds: float, lines: int, in_flight: int, opens: bool
) -> None:
    assert failures(count, seconds, lines, in_flight) is opens


def test_an_answer_ends_a_streak() -> None:
    streak = FailureStreak(clock := Clock())
    for number in range(30):
        if number % 9 == 8:
            streak.end()
        clock.now += 1.0
        assert not streak.failed(f"line {number}", 64)


def test_one_line_at_a_time_tries_an_open_upstream_after_a_delay_that_grows() -> None:
    breaker = a_breaker(clock := Clock())
    for delay in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert breaker.fail(clock.now, "away") == delay
        assert (breaker.state, breaker.seconds_left) == (BreakerState.OPEN, delay)
        clock.now += delay
        breaker.allow_trial()
        assert breaker.try_line(1)
        assert not breaker.try_line(2), "another line tries"
    breaker.close()
    assert (breaker.closed, breaker.outage, breaker.trying) == (True, None, None)


def test_requests_of_the_same_round_open_it_once() -> None:
    breaker = a_breaker(clock := Clock())
    started = clock.now
    assert {breaker.fail(started, "away") for _ in range(8)} == {1.0}
    assert breaker.round == 1
    clock.now += 1.0
    breaker.allow_trial()
    breaker.fail(started, "away")
    assert breaker.state is BreakerState.TRIAL, "it was sent before the trial began"


def test_a_line_that_tries_and_ends_without_a_result_leaves_the_trial_to_the_next() -> None:
    breaker = a_breaker(clock := Clock())
    breaker.fail(clock.now, "away")
    breaker.allow_trial()
    assert breaker.try_line(1)
    assert not breaker.end_trial(2)
    assert breaker.end_trial(1)
    assert breaker.try_line(2)
    assert breaker.patience_left == PATIENCE
    clock.now += PATIENCE
    assert not breaker.patience_left

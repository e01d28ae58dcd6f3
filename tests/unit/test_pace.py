"""Pace: an upstream that limits its rate is asked about as fast as it answers, and no faster."""

import math

import pytest

from batchline.simulate.faults import TokenBucket
from batchline.upstreams.pace import AnswerRate, Pace
from tests.support.rate_limits import PerSecond, Time, World, a_bucket


def turns_within(pace: Pace, time: Time, seconds: float) -> int:
    """How many leave, if there is always one that wants to."""
    taken, end = 0, time.now + seconds
    while time.now < end:
        wait = pace.acquire()
        taken += not wait
        time.now += wait
    return taken


# --- One pace ----------------------------------------------------------------------------------------------


def test_turns_are_spread_at_less_than_the_rate_that_was_answered() -> None:
    time = Time()
    pace = Pace(80, time)
    assert turns_within(pace, time, 0.5) == pytest.approx(30, abs=1)


def test_a_request_that_is_not_due_has_to_wait() -> None:
    time = Time()
    pace = Pace(80, time)
    assert pace.acquire() == 0.0
    assert [pace.acquire() for _ in range(3)] == [pytest.approx(1 / 60)] * 3


def test_after_a_pause_only_a_short_burst_is_allowed() -> None:
    time = Time()
    pace = Pace(80, time)
    pace.acquire()
    time.now += 10.0
    at_once = 0
    while not pace.acquire():
        at_once += 1
    assert 2 <= at_once <= 5, "as many as 50 ms hold"


def test_requests_sent_before_a_reduction_or_in_its_round_cause_no_second_reduction() -> None:
    time = Time()
    pace = Pace(100, time)
    first = time.now
    for _ in range(200):
        time.now += 0.002
        pace.refused(first - 0.3, 0.0)
        pace.refused(time.now, 0.0)
    assert pace.rate == 75.0


def test_each_round_that_is_refused_cuts_deeper_until_hardly_anything_is_sent() -> None:
    time = Time()
    pace = Pace(1000, time)
    rates = []
    for _ in range(60):
        time.now += 0.6
        pace.refused(time.now, 0.0)
        rates.append(pace.rate)
    assert rates[10] < 5
    assert rates[-1] == 0.5


def test_retry_after_is_obeyed_up_to_thirty_seconds() -> None:
    time = Time()
    pace = Pace(100, time)
    pace.refused(time.now, 7.0)
    pace.refused(time.now, 2.0)
    assert pace.acquire() == 7.0
    time.now += 7.0
    assert pace.acquire() == 0.0
    pace.refused(time.now, 3600.0)
    assert pace.acquire() == 30.0


def test_the_rate_does_not_grow_while_the_upstream_is_left_alone() -> None:
    time = Time()
    pace = Pace(100, time)
    pace.refused(time.now, 20.0)
    time.now += 20.0
    assert pace.rate == 75.0


def test_the_rate_does_not_grow_without_requests() -> None:
    time = Time()
    pace = Pace(100, time)
    pace.acquire()
    time.now += 20.0
    pace.acquire()
    assert pace.rate == 75.0


def test_a_pace_is_forgotten_a_minute_after_the_last_refusal() -> None:
    time = Time()
    pace = Pace(100, time)
    time.now += 40
    pace.refused(time.now, 0.0)
    time.now += 59
    assert not pace.over
    time.now += 2
    assert pace.over


def test_answers_are_counted_over_the_last_seconds() -> None:
    time = Time()
    answers = AnswerRate(time)
    for _ in range(300):
        time.now += 0.01
        answers.add()
    assert answers.per_second == pytest.approx(100, rel=0.05)


# --- Against a limit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal_latency", [0.002, 0.1])
@pytest.mark.parametrize("limit", [5, 20, 100, 500])
def test_a_limited_upstream_is_used_to_the_full_and_hardly_refuses(
    limit: int, refusal_latency: float
) -> None:
    world = a_bucket(limit, refusal_latency=refusal_latency)
    world.join(concurrency=2 * limit)
    world.run(70.0)
    assert world.let_in(10.0, 70.0) > 0.9 * limit
    # Of the few that a slow upstream is sent, one in a probe is more.
    maximum = 0.07 if limit < 20 else 0.03
    assert world.refused(10.0, 70.0) < maximum * len(world.between(10.0, 70.0))


def test_a_limit_that_requests_whole_seconds_is_used_well_too() -> None:
    world = a_bucket(100, asks=math.ceil)
    world.join(concurrency=200)
    world.run(70.0)
    assert world.let_in(10.0, 70.0) > 85


def test_a_limit_by_the_second_of_the_clock_is_used_well_too() -> None:
    """It refuses everything for the rest of a second: many refusals, of one cause."""
    time = Time()
    world = World(time, PerSecond(100, time), answered=100)
    world.join(concurrency=200)
    world.run(70.0)
    assert world.let_in(10.0, 70.0) > 85
    assert world.refused(10.0, 70.0) < 0.03 * len(world.between(10.0, 70.0))


@pytest.mark.parametrize("spurious", [1, 30], ids=["one", "many of those in flight"])
def test_after_stray_refusals_it_is_back_within_two_seconds(spurious: int) -> None:
    world = a_bucket(100, spurious=[40.0 + n / 1000 for n in range(spurious)])
    world.join(concurrency=200)
    world.run(60.0)
    assert world.let_in(42.0, 47.0) > 90


def test_a_refusal_before_the_first_answer_delays_requests_only_briefly() -> None:
    """A bad moment: nothing is known of the upstream, which takes its time, and it has no limit at all."""
    time = Time()
    world = World(time, TokenBucket(1e9, time), answered=0.0, latency=2.0, spurious=[0.0])
    world.join(concurrency=200)
    world.run(30.0)
    assert world.let_in(8.0, 28.0) > 0.9 * 100, "200 at once, each of 2 s"


def test_the_rate_recovers_within_seconds_after_seconds_of_refusals() -> None:
    world = a_bucket(100, spurious=[40.0] * 1000)
    world.join(concurrency=200)
    world.run(44.0)
    world.spurious.clear()
    assert world.let_in(43.0, 44.0) == 0
    assert len(world.between(43.0, 44.0)) < 10, "hardly anything is sent while all is refused"
    world.run(70.0)
    assert world.let_in(50.0, 70.0) > 85


@pytest.mark.parametrize(("before", "after"), [(1000, 100), (100, 1000)])
def test_a_limit_that_changes_is_found_again(before: int, after: int) -> None:
    world = a_bucket(before)
    world.join(concurrency=1000)
    world.run(30.0)
    world.limit = TokenBucket(after, world.time)
    world.run(60.0)
    assert world.let_in(42.0, 60.0) > 0.85 * after
    assert world.refused(30.0, 42.0) < 500


def test_nothing_is_sent_before_retry_after_is_over() -> None:
    world = a_bucket(50, asks=lambda _: 5.0)
    world.join(concurrency=100)
    world.run(60.0)
    refused_at = [each.at for each in world.sent if each.refused]
    for at in refused_at:
        reported, requested_until = at + world.refusal_latency, at + world.refusal_latency + 5.0
        # A thousandth, since sums of floats do not meet.
        early = [each.at for each in world.sent if reported < each.at < requested_until - 0.001]
        assert not early, f"asked at {at} to wait until {requested_until}, sent at {early[0]}"


@pytest.mark.parametrize("limit", [20, 100, 500])
@pytest.mark.parametrize("later", [0.0, 20.0])
def test_two_independent_workers_converge_on_a_shared_limit(limit: int, later: float) -> None:
    world = a_bucket(limit)
    for start in (0.0, later):
        world.join(concurrency=2 * limit, at=start)
    world.run(100.0)
    shares = [world.let_in(50.0, 100.0, worker) for worker in {each.worker for each in world.sent}]
    assert sum(shares) > 0.9 * limit
    assert min(shares) > 0.35 * limit, f"of {limit} a second they got {shares}"
    assert world.refused(50.0, 100.0) < 0.06 * len(world.between(50.0, 100.0))

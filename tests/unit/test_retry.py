"""When to try again: within bounds, never before the upstream asked, in few groups."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchline.upstreams.retry import MAX_REQUESTED, Backoff, Outage, requested_delay, rounded_up

NOW = 784111770.0  # Sun, 06 Nov 1994 08:49:30 GMT


def requested(now: float = NOW, **headers: str) -> float:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requested_delay(named.get, now)


# --- Back-off ----------------------------------------------------------------------------------------------


def test_the_ceiling_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(minimum=0.5, maximum=30.0)
    assert [backoff.ceiling(nth) for nth in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.ceiling(1_000_000) == 30.0


@settings(deadline=None)
@given(st.integers(1, 10_000), st.randoms(use_true_random=False))
def test_a_delay_is_anywhere_below_its_ceiling(nth: int, random: Random) -> None:
    backoff = Backoff()
    assert 0 <= backoff.delay(nth, random.random) <= backoff.ceiling(nth) <= backoff.maximum


def test_delays_spread_over_all_that_is_allowed() -> None:
    random = Random(1)
    delays = sorted(Backoff(minimum=8.0).delay(1, random.random) for _ in range(1000))
    assert delays[50] < 1.0
    assert delays[-50] > 7.0
    assert 3.5 < delays[500] < 4.5


# --- The grid ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0, 1e6))
def test_rounding_makes_a_delay_longer_by_an_eighth_or_a_sixteenth_of_a_second_at_most(delay: float) -> None:
    rounded = rounded_up(delay)
    assert delay <= rounded <= delay + max(1 / 16, delay / 8)
    assert rounded > 0
    assert rounded_up(rounded) == rounded


@pytest.mark.parametrize(("nth", "groups"), [(1, 8), (2, 16), (3, 24), (20, 64)])
def test_the_retries_of_one_settle_fall_into_few_groups(nth: int, groups: int) -> None:
    random = Random(2)
    assert len({rounded_up(Backoff().delay(nth, random.random)) for _ in range(5000)}) <= groups


# --- An outage ---------------------------------------------------------------------------------------------


def test_the_delay_grows_once_a_round_however_many_fail() -> None:
    time = 10.0
    outage = Outage(Backoff(minimum=1.0, maximum=8.0), lambda: time, lambda: 1.0)
    assert [outage.failed(started, "refused") for started in (0.0, 9.9, 10.0, 10.9)] == [1.0] * 4
    time = 12.0
    assert [outage.failed(started, "refused") for started in (9.9, 11.0, 10.9, 13.9)] == [1.0, 2.0, 2.0, 2.0]
    time = 14.0
    assert outage.failed(14.0, "timed out") == 4.0
    assert outage.reason == "timed out"


def test_a_delay_during_an_outage_never_exceeds_the_maximum() -> None:
    outage = Outage(Backoff(minimum=0.5, maximum=30.0), lambda: 0.0, Random(3).random)
    assert all(0 < outage.failed(started, "refused") <= 30.0 for started in range(0, 100_000, 100))


# --- Retry-After -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        (".25", 0.25),
        ("2.", 2.0),
        ("86400", MAX_REQUESTED),
        ("9" * 400, MAX_REQUESTED),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7.0),
        ("Sun Nov  6 08:49:37 1994", 7.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_REQUESTED),
    ],
)
def test_retry_after_is_read_in_all_its_forms(value: str, seconds: float) -> None:
    assert requested(retry_after=value) == seconds


@pytest.mark.parametrize(
    "value", ["", "-1", "soon", "nan", "inf", "1e3", "1_000", "0x10", "٣", "Sun, 99 Nov 1994"]
)
def test_an_invalid_retry_after_is_ignored(value: str) -> None:
    assert requested(retry_after=value) == 0.0
    assert requested(retry_after_ms=value) == 0.0


def test_milliseconds_are_the_finer_answer() -> None:
    assert requested(retry_after_ms="1500", retry_after="2") == 1.5
    assert requested(retry_after_ms="soon", retry_after="2") == 2.0


def test_a_date_is_read_by_the_upstreams_own_clock_if_it_tells() -> None:
    date = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert requested(NOW + 1000, date="Sun, 06 Nov 1994 08:49:30 GMT", retry_after=date) == 7.0
    assert requested(NOW, date="garbage", retry_after=date) == 7.0


@settings(deadline=None)
@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ \d+:\d+:\d+ \S*", fullmatch=True))
def test_any_retry_after_header_gives_a_finite_delay_within_the_maximum(value: str) -> None:
    assert 0 <= requested(retry_after=value, retry_after_ms=value, date=value) <= MAX_REQUESTED
    assert math.isfinite(requested(retry_after=value))

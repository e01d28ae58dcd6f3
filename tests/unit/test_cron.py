"""The times of cron expressions, also when the clocks change: tables, and a look at every minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.operations.cron import NEVER, CronTimes
from batchline.operations.errors import InvalidApp

MINUTE = timedelta(minutes=1)
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times_after(times: CronTimes, at: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        at = times.after(at)
        found.append(at)
    return found


# Expression, zone, the moment before, and the local times that follow.
CLOCK_CHANGES = [
    # In Berlin, 2026-03-29 has no 02:00 to 03:00, and 2026-10-25 has it twice.
    ("30 2 * * *", BERLIN, "2026-03-28T12:00", "03-29 03:00+02:00, 03-30 02:30+02:00"),
    ("0 2 * * *", BERLIN, "2026-03-28T12:00", "03-29 03:00+02:00, 03-30 02:00+02:00"),
    ("0,30 2 * * *", BERLIN, "2026-03-28T12:00", "03-29 03:00+02:00, 03-30 02:00+02:00"),
    ("*/15 2 * * *", BERLIN, "2026-03-28T12:00", "03-29 03:00+02:00, 03-30 02:00+02:00"),
    ("30 2,3 * * *", BERLIN, "2026-03-28T12:00", "03-29 03:00+02:00, 03-29 03:30+02:00"),
    ("0 */2 * * *", BERLIN, "2026-03-28T22:00", "03-29 00:00+01:00, 03-29 03:00+02:00, 03-29 04:00+02:00"),
    ("30 2 * * *", BERLIN, "2026-10-24T12:00", "10-25 02:30+02:00, 10-26 02:30+01:00"),
    ("0,30 2 * * *", BERLIN, "2026-10-24T12:00", "10-25 02:00+02:00, 10-25 02:30+02:00, 10-26 02:00+01:00"),
    ("*/30 1-3 * * *", BERLIN, "2026-10-25T00:00", "10-25 02:30+02:00, 10-25 03:00+01:00"),
    # The second 02:15 has passed, and so has the only 02:30 that counts.
    ("30 2 * * *", BERLIN, "2026-10-25T01:15", "10-26 02:30+01:00"),
    ("0 3 * * *", BERLIN, "2026-10-24T12:00", "10-25 03:00+01:00"),
    # A schedule for every hour runs in both hours, and in none that does not exist.
    ("0 * * * *", BERLIN, "2026-10-24T23:30", "10-25 02:00+02:00, 10-25 02:00+01:00, 10-25 03:00+01:00"),
    ("0 * * * *", BERLIN, "2026-03-29T00:30", "03-29 03:00+02:00, 03-29 04:00+02:00"),
    ("*/30 * * * *", BERLIN, "2026-10-25T00:15", "10-25 02:30+02:00, 10-25 02:00+01:00, 10-25 02:30+01:00"),
    # In New York, 2026-03-08 has no 02:00 to 03:00, and 2026-11-01 has 01:00 to 02:00 twice.
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", "03-08 03:00-04:00, 03-09 02:30-04:00"),
    ("59 2 * * SUN", NEW_YORK, "2026-03-07T12:00", "03-08 03:00-04:00, 03-15 02:59-04:00"),
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", "11-01 01:30-04:00, 11-02 01:30-05:00"),
    ("30 1 1 * *", NEW_YORK, "2026-10-31T12:00", "11-01 01:30-04:00, 12-01 01:30-05:00"),
    ("0 * * * *", NEW_YORK, "2026-11-01T04:30", "11-01 01:00-04:00, 11-01 01:00-05:00, 11-01 02:00-05:00"),
    # Others: midnight that does not exist, a day that does not, and half an hour.
    ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", "04-24 01:00+03:00, 04-25 00:00+03:00"),
    ("0 12 30 12 *", "Pacific/Apia", "2011-12-29T12:00", "12-31 00:00+14:00, 12-30 12:00+14:00"),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", "10-04 02:30+11:00, 10-05 02:15+11:00"),
]


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), CLOCK_CHANGES)
def test_clock_changes(expression: str, zone: str, after: str, expected: str) -> None:
    """A time that does not exist is the next moment that does, and one that exists twice is its first."""
    times = CronTimes(expression, zone)
    found = times_after(times, utc(after), len(expected.split(", ")))
    assert ", ".join(times.local(at).isoformat(" ", "minutes")[5:] for at in found) == expected


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("*/5 * * * *", "2026-01-01T00:00", "2026-01-01T00:05"),
        ("*/5 * * * *", "2026-01-01T00:04:59.999999", "2026-01-01T00:05"),
        ("*/5 * * * *", "2026-01-01T00:05:00.000001", "2026-01-01T00:10"),
        ("0 3 * * mon-fri", "2026-01-02T12:00", "2026-01-05T03:00"),
        ("0 0 L * *", "2026-02-01T00:00", "2026-02-28T00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("*/20 * * * * *", "2026-01-01T00:00:10", "2026-01-01T00:00:20"),
    ],
)
def test_the_next_time_is_the_first_after_the_moment(expression: str, after: str, expected: str) -> None:
    assert CronTimes(expression).after(utc(after)) == utc(expected)


ZONES = (BERLIN, NEW_YORK, "UTC", "America/Havana", "Asia/Beirut", "Australia/Lord_Howe", "Asia/Kolkata")
# A few days around clock changes of these zones.
BEGINNINGS = ("2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31")


def elapsed(minutes: set[int], zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """All minutes whose local minute matches, one by one."""
    at = start
    while (at := at + MINUTE) <= end:
        if at.astimezone(zone).minute in minutes:
            yield at


def on_the_wall(
    minutes: set[int], hours: set[int], zone: ZoneInfo, start: datetime, end: datetime
) -> list[datetime]:
    """All local minutes that match, one by one, each at its first moment or at the next one that exists."""
    found = set()
    local = start.replace(tzinfo=None) - timedelta(days=2)
    while local < end.replace(tzinfo=None) + timedelta(days=2):
        if local.minute in minutes and local.hour in hours:
            existing = local
            while (at := existing.replace(tzinfo=zone).astimezone(UTC)).astimezone(zone).replace(
                tzinfo=None
            ) != existing:
                existing += MINUTE
            found.add(at)
        local += MINUTE
    return sorted(at for at in found if start < at <= end)


@given(
    zone=st.sampled_from(ZONES),
    beginning=st.sampled_from(BEGINNINGS),
    minutes=st.sets(st.sampled_from((0, 1, 15, 29, 30, 45, 59)), min_size=1),
    hours=st.none() | st.sets(st.integers(0, 4), min_size=1),
    offset=st.integers(0, 36 * 60),
)
def test_times_are_those_of_a_look_at_every_minute(
    zone: str, beginning: str, minutes: set[int], hours: set[int] | None, offset: int
) -> None:
    start = utc(beginning) + offset * MINUTE
    end = start + timedelta(hours=40)
    fields = ",".join(map(str, sorted(minutes))), "*" if hours is None else ",".join(map(str, sorted(hours)))
    times = CronTimes(f"{fields[0]} {fields[1]} * * *", zone)
    if hours is None:
        expected = list(elapsed(minutes, ZoneInfo(zone), start, end))
    else:
        expected = on_the_wall(minutes, hours, ZoneInfo(zone), start, end)
    found = times_after(times, start, len(expected) + 1)
    assert found[:-1] == expected
    assert found[-1] > end
    for limit in (1, 3, 1000):
        assert times.last(start + MINUTE, end, limit) == expected[-limit:]


def test_the_last_times_include_both_ends() -> None:
    times = CronTimes("0 * * * *")
    assert times.last(utc("2026-01-01T00:00"), utc("2026-01-01T02:00"), 9) == [
        utc("2026-01-01T00:00"),
        utc("2026-01-01T01:00"),
        utc("2026-01-01T02:00"),
    ]
    assert times.last(utc("2026-01-01T00:01"), utc("2026-01-01T00:59"), 9) == []


def test_the_last_times_of_many_years_are_found_without_a_look_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, looked_at = CronTimes("* * * * *"), 0
    every = CronTimes._times_after

    def counted(self: CronTimes, at: datetime) -> Iterator[datetime]:
        nonlocal looked_at
        for each in every(self, at):
            looked_at += 1
            yield each

    monkeypatch.setattr(CronTimes, "_times_after", counted)
    assert times.last(utc("1990-01-01"), utc("2026-01-01"), 1) == [utc("2026-01-01")]
    assert looked_at < 100


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("@daily", "five fields"),
        (5, "five fields"),
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("1" * 9_000 + " * * * *", "is wrong"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("* * */20 * 1L", "no date matches it"),
    ],
)
def test_an_expression_that_is_wrong_or_never_matches_is_refused(expression: str, problem: str) -> None:
    with pytest.raises(InvalidApp, match=problem):
        CronTimes(expression)


@pytest.mark.parametrize("zone", ["", "Europe", "Europe/Nowhere", "../etc/passwd", "x\0y", 5])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidApp, match="no time zone"):
        CronTimes("* * * * *", zone)


@given(st.text(alphabet="0123456789*/,-#LWAMONSU ", max_size=24))
def test_any_text_is_refused_or_has_a_next_time(text: str) -> None:
    try:
        times = CronTimes(text, BERLIN)
    except InvalidApp:
        return
    now = utc("2026-11-17T20:00")
    assert now < times.after(now) <= NEVER


def test_the_definition_is_the_same_for_the_same_times() -> None:
    assert CronTimes(" 0  3 * * mon", BERLIN).definition == "0 3 * * MON Europe/Berlin"
    others = {CronTimes(each, zone).definition for each in ("0 3 * * *", "1 3 * * *") for zone in ZONES}
    assert len(others) == 2 * len(ZONES)


def test_a_leap_day_is_found_across_a_century_without_one() -> None:
    assert CronTimes("0 0 29 2 *").after(utc("2096-03-01")) == utc("2104-02-29")

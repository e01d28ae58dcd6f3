"""Schedules of an app: which functions can be one, which time is run, and what the function gets."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batchline.operations.cron import CronTimes
from batchline.operations.errors import InvalidApp
from batchline.operations.operation import make_operation
from batchline.operations.schedules import (
    MAX_CATCH_UP,
    AnySchedule,
    DueTime,
    ScheduleCatalog,
    make_schedule,
)

HOUR = timedelta(hours=1)
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


async def report(day: str) -> str:
    return day


async def nightly(at: datetime) -> list[str]:
    return [at.isoformat()]


OPERATION = make_operation(report)


def hourly(**more: Any) -> AnySchedule:
    return make_schedule(nightly, OPERATION, CronTimes("0 * * * *", "Europe/Berlin"), **more)


def test_a_time_that_is_due_is_run_and_the_next_follows() -> None:
    assert hourly().due(MIDNIGHT, MIDNIGHT + HOUR / 2) == DueTime(MIDNIGHT, MIDNIGHT + HOUR)


def test_of_missed_times_only_the_latest_is_run() -> None:
    assert hourly().due(MIDNIGHT, MIDNIGHT + 5.5 * HOUR) == DueTime(MIDNIGHT + 5 * HOUR, MIDNIGHT + 6 * HOUR)


def test_with_catch_up_missed_times_are_run_from_the_oldest_on() -> None:
    schedule = hourly(catch_up=True)
    assert schedule.due(MIDNIGHT, MIDNIGHT + 5.5 * HOUR) == DueTime(MIDNIGHT, MIDNIGHT + HOUR)
    newest = MIDNIGHT + MAX_CATCH_UP * HOUR
    assert schedule.due(MIDNIGHT, newest) == DueTime(MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR), "one too many"


def test_a_due_time_that_is_none_any_more_is_run_all_the_same() -> None:
    """The rules of a time zone have changed."""
    odd = MIDNIGHT + HOUR / 3
    assert hourly().due(odd, odd + HOUR / 3) == DueTime(odd, MIDNIGHT + HOUR)


async def test_the_function_gets_the_local_time() -> None:
    assert await hourly().items(MIDNIGHT) == ["2026-01-01T01:00:00+01:00"]


async def test_a_function_may_yield_its_items() -> None:
    async def each(at: datetime) -> AsyncIterator[str]:
        yield "a"
        yield "b"

    items = await make_schedule(each, OPERATION, CronTimes("0 * * * *")).items(MIDNIGHT)
    assert isinstance(items, AsyncIterator)
    assert [item async for item in items] == ["a", "b"]


def blocking(at: datetime) -> list[str]:
    return []


async def without_time() -> list[str]:
    return []


async def with_more(at: datetime, more: int) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("function", "problem"),
    [(blocking, "async def"), (without_time, "one parameter"), (with_more, "one parameter")],
)
def test_a_function_that_cannot_be_a_schedule_is_refused(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(InvalidApp, match=problem):
        make_schedule(function, OPERATION, CronTimes("* * * * *"))


def test_a_name_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidApp, match="cannot be the name of a schedule"):
        hourly(name="Nightly report")


def test_two_functions_cannot_have_one_name_and_one_may_be_defined_again() -> None:
    async def other(at: datetime) -> list[str]:
        return []

    catalog = ScheduleCatalog()
    catalog.add(hourly())
    catalog.add(hourly())
    with pytest.raises(InvalidApp, match="two schedules 'nightly'"):
        catalog.add(make_schedule(other, OPERATION, CronTimes("* * * * *"), name="nightly"))
    assert [each.name for each in catalog] == ["nightly"]

"""Schedules of an app: an operation, the times of its batches, and the function that returns their items."""

import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeAlias

import msgspec

from batchline.operations.codec import ItemT
from batchline.operations.cron import NEVER, CronTimes
from batchline.operations.errors import InvalidApp
from batchline.operations.names import checked_name, function_home
from batchline.operations.operation import AnyOperation, check_begins

# Of the times that nobody has run, so many at most are run later.
MAX_CATCH_UP = 1_000

ScheduledItems: TypeAlias = Iterable[ItemT] | AsyncIterable[ItemT]
ScheduleFunction: TypeAlias = (
    Callable[[datetime], Coroutine[Any, Any, ScheduledItems[ItemT] | None]]
    | Callable[[datetime], AsyncIterable[ItemT]]
)


class DueTime(msgspec.Struct, frozen=True):
    """The time to run now, in UTC, and the one that follows it."""

    at: datetime
    following: datetime


class CronSchedule(Generic[ItemT]):
    """Submits a batch of one operation at each of its times."""

    def __init__(
        self,
        name: str,
        function: ScheduleFunction[ItemT],
        operation: AnyOperation,
        times: CronTimes,
        *,
        catch_up: bool = False,
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.operation = operation
        self.times = times
        self.catch_up = catch_up
        self.keywords: Mapping[str, Any] = keywords or {}
        """Those of `submit` for each batch."""

    def __repr__(self) -> str:
        return f"<schedule {self.name!r}>"

    async def items(self, at: datetime) -> ScheduledItems[ItemT] | None:
        """Call the function with a local time. None: this time needs no batch."""
        found = self.function(self.times.local(at))
        return found if isinstance(found, AsyncIterable) else await found

    def due(self, since: datetime, now: datetime) -> DueTime:
        """Which time to run, if nothing has run from `since` on, which is one of them: the latest, or with
        `catch_up` the oldest of those that are not too many."""
        missed = self.times.last(since, now, MAX_CATCH_UP if self.catch_up else 1)
        # None is found if the rules of the time zone have changed since the time was computed.
        at = missed[0] if missed else since
        return DueTime(at, self.times.after(at))


AnySchedule: TypeAlias = CronSchedule[Any]


def make_schedule(
    function: Callable[..., Any],
    operation: AnyOperation,
    times: CronTimes,
    *,
    name: str | None = None,
    catch_up: bool = False,
    keywords: Mapping[str, Any] | None = None,
) -> AnySchedule:
    """The schedule of a decorated function. Raises InvalidApp."""
    name = checked_name("a schedule", function, name)
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise InvalidApp(f"schedule {name!r}: its function must be `async def`, and return or yield items")
    try:
        inspect.signature(function).bind(NEVER)
    except TypeError:
        raise InvalidApp(
            f"schedule {name!r}: its function must have one parameter, the time: async def {name}(at)"
        ) from None
    try:
        check_begins(operation)
    except InvalidApp as error:
        raise InvalidApp(f"schedule {name!r}: {error}") from None
    return CronSchedule(name, function, operation, times, catch_up=catch_up, keywords=keywords)


class ScheduleCatalog:
    """The schedules of an app, by name."""

    def __init__(self) -> None:
        self._schedules: dict[str, AnySchedule] = {}

    def __iter__(self) -> Iterator[AnySchedule]:
        return iter(list(self._schedules.values()))

    def add(self, schedule: AnySchedule) -> None:
        """Raises InvalidApp if another function has the name. The same one may be defined again."""
        known = self._schedules.get(schedule.name)
        if known is not None and function_home(known.function) != function_home(schedule.function):
            raise InvalidApp(f'there are two schedules {schedule.name!r}; give one another name: name="…"')
        self._schedules[schedule.name] = schedule

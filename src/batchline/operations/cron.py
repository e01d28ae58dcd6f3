"""The times of a cron expression in a time zone, also across clock changes.

A schedule for certain hours follows the clock on the wall. A local time that does not exist is the next
moment that does. One that exists twice is its first. A schedule for every hour follows elapsed time: when an
hour comes twice, it runs in both.
"""

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from batchline.operations.errors import InvalidApp

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
# A schedule that has no time in the 50 years after this has none at all.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_HOURS = 24
# To find the last times before a moment: look back this far first, then so many times as far.
_FIRST_LOOK, _FURTHER = timedelta(hours=1), 4


class CronTimes:
    """All times of an expression with five fields, or with six, of which the first is the second."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        """Raises InvalidApp."""
        self._zone = _zone(timezone)
        fields = _fields(expression)
        # With six fields, CronSim leaves clock changes to us.
        self._fields = " ".join(["0", *fields] if len(fields) == 5 else fields)
        self._every_hour = len(_parsed(expression, self._fields).hours) == _HOURS
        self.definition = f"{' '.join(fields)} {timezone}"
        """The same for the same times. It is stored, so that a change can be recognized."""
        if self.after(_EPOCH) == NEVER:
            raise InvalidApp(f"the cron expression {expression!r} has no time: no date matches it")

    def local(self, at: datetime) -> datetime:
        return at.astimezone(self._zone)

    def after(self, at: datetime) -> datetime:
        """The first time after this moment, in UTC."""
        return next(self._times_after(at), NEVER)

    def last(self, since: datetime, until: datetime, limit: int) -> list[datetime]:
        """The last `limit` times from `since` to `until`, with both, the oldest first."""
        before = since - timedelta(microseconds=1)
        look = _FIRST_LOOK
        while True:
            start = max(before, until - look)
            found = deque(takewhile(lambda at: at <= until, self._times_after(start)), limit)
            if len(found) == limit or start == before:
                return list(found)
            look *= _FURTHER

    def _times_after(self, at: datetime) -> Iterator[datetime]:
        """All later ones. The same moment may stand for several local times that do not exist."""
        last = at.astimezone(UTC)
        for moment in self._elapsed(at) if self._every_hour else self._on_the_wall(at):
            if moment > last:
                yield moment
                last = moment

    def _elapsed(self, at: datetime) -> Iterator[datetime]:
        for local in CronSim(self._fields, self.local(at)):
            yield local.astimezone(UTC)

    def _on_the_wall(self, at: datetime) -> Iterator[datetime]:
        for local in CronSim(self._fields, self.local(at).replace(tzinfo=None, fold=0)):
            yield self._first_moment(local)

    def _first_moment(self, local: datetime) -> datetime:
        moment = local.replace(tzinfo=self._zone).astimezone(UTC)
        if self._exists(local, moment):
            return moment
        # All clock changes are at whole minutes.
        local = local.replace(second=0)
        while not self._exists(local, moment):
            local += _MINUTE
            moment = local.replace(tzinfo=self._zone).astimezone(UTC)
        return moment

    def _exists(self, local: datetime, moment: datetime) -> bool:
        return self.local(moment).replace(tzinfo=None) == local


def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (LookupError, ValueError, TypeError, OSError):
        raise InvalidApp(
            f'there is no time zone {timezone!r}; give a name such as "Europe/Berlin" or "UTC"'
        ) from None


def _fields(expression: str) -> list[str]:
    fields = expression.upper().split() if isinstance(expression, str) else []
    if len(fields) not in (5, 6):
        raise InvalidApp(
            f"{expression!r} is no cron expression; it has five fields: minute, hour, day of the month, month"
            ' and day of the week, such as "0 3 * * *". With six, the first is the second'
        )
    return fields


def _parsed(expression: str, fields: str) -> CronSim:
    try:
        return CronSim(fields, _EPOCH)
    except (CronSimError, ValueError) as error:
        raise InvalidApp(f"the cron expression {expression!r} is wrong: {str(error).lower()}") from None

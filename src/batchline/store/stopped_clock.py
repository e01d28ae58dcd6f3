"""The time of a test, which passes only when the test says so. Workers and the database keep their own time.

What waits for its next attempt gets a time far in the future that stands for the one of the test, so it does
not come due by itself. A second of the test is many of the database: how long a statement takes must not
count.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from batchline.store.session import Session
from batchline.store.statements import statement

# Before year 9999, which marks what is held back for a later step.
_FAR = 366 * 86_400.0
_STRETCH = 1_000.0
_MAX_SECONDS = 5 * 366 * 86_400.0
# Of the test.
_TOLERANCE = 0.01


class StoppedClock:
    """Seconds since the start of a test. `started`: the time of the database then."""

    def __init__(self, started: datetime) -> None:
        self._started = started
        self._began = time.monotonic()
        self.seconds = 0.0

    def delay(self, seconds: float) -> float:
        """The delay for the database that stands for one of the test."""
        due = min(self.seconds + seconds, _MAX_SECONDS)
        return _FAR + due * _STRETCH - (time.monotonic() - self._began)

    def due(self) -> tuple[datetime, datetime]:
        """From when to when the times of the database stand for times that have come."""
        first = self._started + timedelta(seconds=_FAR / 2)
        return first, self._started + timedelta(seconds=_FAR + (self.seconds + _TOLERANCE) * _STRETCH)


async def stopped(session: Session) -> StoppedClock:
    rows = await session.rows(statement("server_time"), {})
    return StoppedClock(rows[0][0])


async def release(session: Session, clock: StoppedClock) -> None:
    """Let items run whose time has come."""
    first, last = clock.due()
    await session.rows(statement("release_stopped"), {"first": first, "last": last})


async def advance_deadlines(session: Session, tenant: str, seconds: float) -> None:
    """Deadlines of batches, and schedules and calls that are tried again."""
    await session.rows(statement("advance_deadlines"), {"tenant": tenant, "seconds": seconds})


async def release_schedules(session: Session, tenant: str, clock: StoppedClock) -> bool:
    """Let schedules run whose time has come. False if there was none."""
    params = {"tenant": tenant, "seconds": clock.seconds}
    return bool(await session.rows(statement("release_schedules"), params))


async def quiet(session: Session, tenant: str, keys: Sequence[str], schedules: Sequence[str]) -> bool:
    """Whether a worker of these keys has nothing to do now, and has registered these schedules."""
    params = {"tenant": tenant, "keys": list(keys), "schedules": list(schedules)}
    rows = await session.rows(statement("quiet"), params)
    return bool(rows[0][0])

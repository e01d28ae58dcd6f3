"""Schedules of Python apps. The database knows when each is due, and what time it is. Apps compute the
times."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

_MAX_LAGS = 1_000


class ScheduleScope(msgspec.Struct, frozen=True):
    """The schedules that a worker has, by name, with their definitions."""

    tenant: str = ""
    definitions: Mapping[str, str] = {}

    def params(self) -> dict[str, object]:
        return {
            "schedule_tenant": self.tenant,
            "schedule_names": list(self.definitions),
            "schedule_definitions": list(self.definitions.values()),
        }


NO_SCHEDULES = ScheduleScope()


class StoredSchedule(msgspec.Struct, frozen=True):
    name: str
    definition: str
    # The oldest time that has become no batch yet, and when a worker may take it.
    due_at: datetime
    available_at: datetime
    attempts: int
    last_error: str | None
    last_at: datetime | None
    last_batch_id: UUID | None
    # The url of the operation of that batch; None if it was deleted.
    operation: str | None
    # The time of the database.
    now: datetime

    @property
    def state(self) -> str:
        """`waiting` until its next time; then `running` in a worker, `retrying` after an error, or `late` if
        no worker has taken it."""
        if self.due_at > self.now:
            return "waiting"
        if self.last_error is not None:
            return "retrying"
        return "running" if self.available_at > self.now else "late"


class ScheduleLag(msgspec.Struct, frozen=True):
    name: str
    # How long ago it came due without a batch; 0: it is not due.
    seconds: float


class KnownSchedules(msgspec.Struct, frozen=True):
    """The time of the database, and the definitions that it knows, by name."""

    now: datetime
    definitions: Mapping[str, str]


class NewSchedule(msgspec.Struct, frozen=True):
    name: str
    definition: str
    due_at: datetime


class TakenSchedule(msgspec.Struct, frozen=True):
    """A schedule that is due, leased to this worker. `now` is the time of the database."""

    tenant: str
    name: str
    definition: str
    due_at: datetime
    attempt: int
    now: datetime


async def known(session: Session, scope: ScheduleScope) -> KnownSchedules:
    rows = await session.rows(statement("known_schedules"), scope.params())
    found = {name: definition for _, name, definition in rows if name is not None}
    return KnownSchedules(rows[0][0], found)


async def register(session: Session, tenant: str, new: Sequence[NewSchedule]) -> None:
    """Store schedules that are new or have another definition. Raises TenantClosed."""
    params = {
        "tenant": tenant,
        "names": [each.name for each in new],
        "definitions": [each.definition for each in new],
        "due": [each.due_at for each in new],
    }
    await session.rows(statement("register_schedules"), params)


async def take_due(session: Session, scope: ScheduleScope, *, lease: float) -> list[TakenSchedule]:
    """Lease what is due of these schedules."""
    params = {**scope.params(), "lease": lease}
    return [TakenSchedule(*row) for row in await session.rows(statement("take_due_schedules"), params)]


async def advance(
    session: Session, taken: TakenSchedule, *, at: datetime, following: datetime, batch_id: UUID | None
) -> float | None:
    """Note that a time has become a batch, or needs none. Returns the seconds until the next time is due;
    None if another worker has the schedule."""
    more = {"at": at, "following": following, "batch": batch_id}
    rows = await session.rows(statement("advance_schedule"), {**_fence(taken), **more})
    return float(rows[0][0]) if rows else None


async def put_off(session: Session, taken: TakenSchedule, *, delay: float, error: str) -> bool:
    """Make a schedule that failed due again after a delay. False if another worker has it."""
    more = {"delay": delay, "error": error}
    return bool(await session.rows(statement("put_off_schedule"), {**_fence(taken), **more}))


async def listed(session: Session, tenant: str) -> list[StoredSchedule]:
    rows = await session.rows(statement("list_schedules"), {"tenant": tenant})
    return [StoredSchedule(*row) for row in rows]


async def lags(session: Session) -> list[ScheduleLag]:
    """Of all tenants."""
    rows = await session.rows(statement("schedule_lags"), {"limit": _MAX_LAGS})
    return [ScheduleLag(*row) for row in rows]


async def forget(session: Session, tenant: str, name: str) -> bool:
    """False if there is no such schedule."""
    return bool(await session.rows(statement("forget_schedule"), {"tenant": tenant, "name": name}))


def _fence(taken: TakenSchedule) -> dict[str, object]:
    return {
        "tenant": taken.tenant,
        "name": taken.name,
        "definition": taken.definition,
        "due": taken.due_at,
        "attempt": taken.attempt,
    }

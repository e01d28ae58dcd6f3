"""Submits the batches of an app's schedules: each due time becomes one batch, whichever worker runs it.

A worker leases a schedule that is due, and calls its function without any lock. One transaction then advances
the schedule, if it is still at the same due time, and creates the batch. So a crash does both or neither, and
of two workers one creates nothing. Only the database's clock decides what is due. Schedules run beside each
other, each with its own session: one that hangs or fails delays no other.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import structlog

from batchline.model.ids import BATCH, new_id, show
from batchline.operations.schedules import AnySchedule, DueTime, ScheduledItems
from batchline.operations.user_errors import RAISED_BY_USERS, is_cancellation, stored_reason
from batchline.store import schedules as stored
from batchline.store.batches import AlreadyExists
from batchline.store.errors import TenantClosed
from batchline.store.guest import long_transaction
from batchline.store.schedules import NewSchedule, ScheduleScope, TakenSchedule
from batchline.store.session import InTransaction, Session, StoreUnavailable
from batchline.upstreams.retry import Backoff
from batchline.worker.service import Service
from batchline.worker.tasks import cancel_all

# The function's time limit, and that of reading its items into the database.
FUNCTION_LIMIT = 60.0
ITEMS_LIMIT = 600.0
# Longer than a function may run. After that, another worker runs it.
LEASE = FUNCTION_LIMIT + 30.0
# What comes due sooner than this is not left to a poll.
_SOON = 60.0
_REGISTER_EVERY = 3600.0
_RETRY = Backoff(minimum=5.0, maximum=300.0)

_log = structlog.get_logger("batchline.schedules")


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """A batch to create for one time of a schedule."""

    id: UUID
    schedule: AnySchedule
    # The time in the schedule's time zone.
    at: datetime
    # Unique among the tenant's batches, so that a time has no second batch after the clock was put back.
    resume_key: str


class ItemsUnreadable(Exception):
    """The items of a schedule cannot be read. Its cause says why."""


SubmitScheduled: TypeAlias = Callable[[InTransaction, ScheduledBatch, ScheduledItems[Any]], Awaitable[object]]
"""Create the batch with these items, within the transaction. May raise ItemsUnreadable."""


async def _nothing(session: InTransaction, batch: ScheduledBatch, items: ScheduledItems[Any]) -> None:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AppSchedules:
    """The schedules of an app, and how it submits."""

    tenant: str = ""
    schedules: tuple[AnySchedule, ...] = ()
    submit: SubmitScheduled = _nothing

    @property
    def scope(self) -> ScheduleScope:
        return ScheduleScope(self.tenant, {each.name: each.times.definition for each in self.schedules})

    def named(self, name: str) -> AnySchedule:
        return next(each for each in self.schedules if each.name == name)


class ScheduleRunner(Service):
    """Idle while no schedule runs."""

    name = "schedules"

    def __init__(self, url: str, session: Session, app: AppSchedules) -> None:
        super().__init__()
        self._url = url
        self._session = session
        self._app = app
        self._running: set[asyncio.Task[None]] = set()
        self._registered_at: float | None = None
        self._stopping = False

    def wake(self) -> None:
        # A worker without schedules must not open a connection for them.
        if self._app.schedules:
            super().wake()

    def stop(self) -> None:
        # Another worker runs what is due.
        self._stopping = True

    async def run(self) -> None:
        self.wake()
        try:
            await super().run()
        finally:
            await cancel_all(list(self._running))

    @property
    def _busy(self) -> bool:
        return bool(self._running)

    async def _work(self) -> None:
        if self._stopping:
            return
        try:
            if self._registration_is_old:
                await self._register()
            for taken in await stored.take_due(self._session, self._app.scope, lease=LEASE):
                self._start(taken)
        except TenantClosed as error:
            _log.error("cannot run schedules", reason=str(error))
        except StoreUnavailable as error:
            # The next poll wakes it again, if something is due.
            _log.warning("cannot look for schedules", reason=str(error))
            self._wake_in(random.uniform(_RETRY.minimum / 2, _RETRY.minimum))

    @property
    def _registration_is_old(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._registered_at is None or now - self._registered_at >= _REGISTER_EVERY

    async def _register(self) -> None:
        """Tell the database which schedules there are, and when those that it does not know are due.

        Only at the beginning may it replace a definition: a later one is that of a newer app.
        """
        known, begins = await stored.known(self._session, self._app.scope), self._registered_at is None
        new = [
            NewSchedule(each.name, each.times.definition, each.times.after(known.now))
            for each in self._app.schedules
            if each.name not in known.definitions
            or (begins and known.definitions[each.name] != each.times.definition)
        ]
        if new:
            await stored.register(self._session, self._app.tenant, new)
        self._registered_at = asyncio.get_running_loop().time()
        self._wake_in(_REGISTER_EVERY)
        for each in new:
            self._expect((each.due_at - known.now).total_seconds())

    def _start(self, taken: TakenSchedule) -> None:
        task = asyncio.create_task(self._run(taken), name=f"schedule {taken.name}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        # Other times may be due that were missed.
        self.wake()

    async def _run(self, taken: TakenSchedule) -> None:
        try:
            async with Session(self._url, "schedule") as session:
                await self._submit(session, taken)
        except RAISED_BY_USERS as error:
            if is_cancellation(error):
                raise
            # Other schedules must go on.
            cause = error.__cause__ if isinstance(error, ItemsUnreadable) else None
            await self._put_off(taken, cause or error)

    async def _submit(self, session: Session, taken: TakenSchedule) -> None:
        schedule = self._app.named(taken.name)
        due = schedule.due(taken.due_at, taken.now)
        items = await _within(FUNCTION_LIMIT, schedule.items(due.at), "its function did not end")
        batch = None
        if items is not None:
            key = f"schedule {schedule.name} {due.at.isoformat()}"
            batch = ScheduledBatch(new_id(), schedule, schedule.times.local(due.at), key)
        try:
            storing = self._store(session, taken, due, batch, items)
            following = await _within(ITEMS_LIMIT, storing, "its items could not be stored")
        except AlreadyExists:
            # The database's clock was put back, or its row was lost.
            batch = None
            following = await self._store(session, taken, due, None, None)
        if following is None:
            _log.info("another worker has the schedule", schedule=taken.name)
            return
        _log.info(
            "schedule submitted" if batch else "schedule needs no batch",
            schedule=taken.name,
            at=due.at.isoformat(),
            **({"batch": show(BATCH, batch.id)} if batch else {}),
        )
        self._expect(following)

    async def _store(
        self,
        session: Session,
        taken: TakenSchedule,
        due: DueTime,
        batch: ScheduledBatch | None,
        items: ScheduledItems[Any] | None,
    ) -> float | None:
        """Returns the seconds until the schedule is due again; None: another worker has it."""
        async with long_transaction(session) as inside:
            following = await stored.advance(
                inside,
                taken,
                at=due.at,
                following=due.following,
                batch_id=None if batch is None else batch.id,
            )
            if following is not None and batch is not None and items is not None:
                await self._app.submit(inside, batch, items)
            return following

    async def _put_off(self, taken: TakenSchedule, error: BaseException) -> None:
        """Try the time again after a delay. If that cannot be stored, the lease ends by itself."""
        longest = _RETRY.ceiling(taken.attempt)
        delay = random.uniform(longest / 2, longest)
        reason = stored_reason(error)
        _log.warning(
            "schedule failed",
            schedule=taken.name,
            reason=reason,
            again_in=round(delay, 1),
            exc_info=None if isinstance(error, StoreUnavailable | TenantClosed) else error,
        )
        try:
            if await stored.put_off(self._session, taken, delay=delay, error=reason):
                self._expect(delay)
        except StoreUnavailable as unavailable:
            _log.warning("cannot put the schedule off", schedule=taken.name, reason=str(unavailable))

    def _expect(self, seconds: float) -> None:
        """Something is due then. Later ones are left to polls."""
        if seconds < _SOON:
            self._wake_in(max(seconds, 0.0) + 0.005)

    def _wake_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)


async def _within(limit: float, act: Awaitable[Any], problem: str) -> Any:
    try:
        async with asyncio.timeout(limit) as timeout:
            return await act
    except TimeoutError:
        if not timeout.expired():
            raise
        raise TimeoutError(f"{problem} within {limit:g} s") from None

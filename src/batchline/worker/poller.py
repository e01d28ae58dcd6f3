"""Fallback poller for when no notification arrives: finds work, maintenance tasks, batches to finalize and
events to deliver.

It polls after 750 ms, then after twice as long each time, up to 15 s, and starts over as soon as a claim has
found work: an idle worker costs the database little. A poll also returns when the next known task comes due,
and the poller polls again at that time.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import structlog

from batchline.config.settings import WorkerSettings
from batchline.model import PollResult
from batchline.store import spans
from batchline.store.schedules import NO_SCHEDULES, ScheduleScope
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import NOTHING_HELD, Scope
from batchline.worker.lease import Lease
from batchline.worker.service import Service

# A retry that comes due within this time is worth waiting for, even for a worker that drains.
_SOON = 60.0

_log = structlog.get_logger("batchline.poller")


class Poller(Service):
    """`on_result` wakes the services that have something to do. `held`: the batches that the worker holds
    lines of, with the concurrency that it knows of each."""

    name = "poller"

    def __init__(
        self,
        session: Session,
        lease: Lease,
        scope: Scope,
        settings: WorkerSettings,
        on_result: Callable[[PollResult], None],
        hooks: Sequence[str] = (),
        held: Callable[[], Mapping[UUID, int | None]] = lambda: NOTHING_HELD,
        schedules: ScheduleScope = NO_SCHEDULES,
    ) -> None:
        super().__init__()
        self._session = session
        self._lease = lease
        self._scope = scope
        self._settings = settings
        self._on_result = on_result
        self._hooks = hooks
        self._held = held
        self._schedules = schedules
        self._interval = settings.poll_min
        self._next_due: float | None = None
        self._waiting: list[asyncio.Future[bool]] = []
        self.only_claimable = False
        """Whether the last poll found lines to claim, and nothing else to do now or soon."""
        # The pause that is under way.
        self._pause: asyncio.Timeout | None = None

    def wake(self) -> None:
        """Poll now. To poll is not work that a drain waits for, so the poller stays idle."""
        self._interval = self._settings.poll_min
        self._woken.set()

    def reset(self) -> None:
        """There is work again: poll often from now on. A long pause that is under way becomes a short one."""
        self._interval = self._settings.poll_min
        if self._pause is not None and not self._pause.expired():
            ends = asyncio.get_running_loop().time() + self._next_interval()
            self._pause.reschedule(min(ends, self._pause.when() or ends))

    async def sees_work(self, *, now: bool) -> bool:
        """Wait for a poll that begins after this call: one that begins now, or the next one that is due.
        False if it found nothing to do now or soon."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        if now:
            self.wake()
        return await answer

    async def run(self) -> None:
        while True:
            self._woken.clear()
            waiting = list(self._waiting)
            found = await self._poll()
            for answer in waiting:
                self._waiting.remove(answer)
                if not answer.done():
                    answer.set_result(found)
            await self._wait()

    async def _poll(self) -> bool:
        try:
            result = await spans.poll(
                self._session, self._lease.worker.id, self._scope, self._hooks, self._held(), self._schedules
            )
        except StoreUnavailable as error:
            _log.warning("cannot poll", reason=str(error))
            self.only_claimable = False
            return True
        self._next_due = result.next_due
        self._on_result(result)
        soon = result.next_free is not None and result.next_free < _SOON
        due = result.maintenance_due or result.news or result.hooks_due or result.schedules_due
        more = soon or result.finalizable or due
        self.only_claimable = result.claimable and not more
        return result.claimable or more

    async def _wait(self) -> None:
        seconds = self._next_interval()
        if self._next_due is not None and self._next_due > 0:
            seconds = min(seconds, self._next_due + 0.005)
        try:
            async with asyncio.timeout(seconds) as self._pause:
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._pause = None

    def _next_interval(self) -> float:
        """The interval and a random amount more, so that many idle workers do not poll at the same time."""
        seconds = self._interval * random.uniform(1.0, 1.2)
        self._interval = min(self._interval * 2, self._settings.poll_max)
        return seconds

"""Looks around when nothing calls: for work that no event told of, for duties, for batches to finalize,
for events to tell of.

It polls after 750 ms, then after twice as long each time, up to 15 s, and starts over when work is found
(seed 003). A poll also says when the next known thing comes due, and the attendant is there at that time.
"""

import asyncio
import random

import structlog

from batchline.config import WorkerSettings
from batchline.engine import duties
from batchline.engine.objects import Objects
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.finalizer import Finalizer
from batchline.worker.lease import Lease
from batchline.worker.messenger import Messenger
from batchline.worker.producers import Producers

# A retry that comes due within this time is worth waiting for, also for a worker that only drains.
_SOON = 60.0

_log = structlog.get_logger("batchline.attendant")


class Attendant:
    def __init__(
        self,
        session: Session,
        lease: Lease,
        scope: Scope,
        settings: WorkerSettings,
        objects: Objects,
        producers: Producers,
        finalizer: Finalizer,
        messenger: Messenger,
    ) -> None:
        self._session = session
        self._lease = lease
        self._scope = scope
        self._settings = settings
        self._objects = objects
        self._producers = producers
        self._finalizer = finalizer
        self._messenger = messenger
        self._called = asyncio.Event()
        self._interval = settings.poll_least
        self._next_due: float | None = None

    def call(self) -> None:
        """Look around at once."""
        self._interval = self._settings.poll_least
        self._called.set()

    async def run(self) -> None:
        while True:
            self._called.clear()
            await self.sees_work()
            await self._wait()

    async def sees_work(self) -> bool:
        """Poll, and set everybody to what there is to do; False when there is nothing now or soon."""
        for claimer in self._producers.claimers:
            if claimer.found.is_set():
                claimer.found.clear()
                self._interval = self._settings.poll_least
        try:
            horizon = await spans.poll(self._session, self._lease.worker.id, self._scope)
            self._next_due = horizon.next_due
            if horizon.claimable:
                for claimer in self._producers.claimers:
                    claimer.hope.set()
            if horizon.finalizable:
                self._finalizer.call()
            if horizon.news:
                self._messenger.call()
            if horizon.duty_due:
                await duties.attend(
                    self._session,
                    self._objects,
                    self._settings.results_retention,
                    self._settings.operations_retention,
                )
        except StoreUnavailable as error:
            _log.warning("cannot poll", reason=str(error))
            return True
        soon = horizon.next_free is not None and horizon.next_free < _SOON
        return soon or horizon.claimable or horizon.finalizable or horizon.duty_due or horizon.news

    async def _wait(self) -> None:
        # Some more than the interval, at random: a crowd of idle workers must not ask in step.
        seconds = self._interval * random.uniform(1.0, 1.2)
        self._interval = min(self._interval * 2, self._settings.poll_most)
        if self._next_due is not None and self._next_due > 0:
            seconds = min(seconds, self._next_due + 0.005)
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return

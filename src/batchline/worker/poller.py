"""Fallback poller for when no notification arrives: finds work, maintenance tasks, batches to finalize and
events to deliver.

It polls after 750 ms, then after twice as long each time, up to 15 s, and starts over when it finds work:
an idle worker costs the database little. A poll also returns when the next known task comes due, and the
poller runs at that time.
"""

import asyncio
import random

import structlog

from batchline.batches import maintenance
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.finalizer import Finalizer
from batchline.worker.lease import Lease
from batchline.worker.outbox import Outbox
from batchline.worker.producers import Producers

# A retry that comes due within this time is worth waiting for, also for a worker that only drains.
_SOON = 60.0

_log = structlog.get_logger("batchline.poller")


class Poller:
    def __init__(
        self,
        session: Session,
        lease: Lease,
        scope: Scope,
        settings: WorkerSettings,
        objects: Objects,
        producers: Producers,
        finalizer: Finalizer,
        outbox: Outbox,
    ) -> None:
        self._session = session
        self._lease = lease
        self._scope = scope
        self._settings = settings
        self._objects = objects
        self._producers = producers
        self._finalizer = finalizer
        self._outbox = outbox
        self._called = asyncio.Event()
        self._interval = settings.poll_min
        self._next_due: float | None = None

    def call(self) -> None:
        """Look around at once."""
        self._interval = self._settings.poll_min
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
                self._interval = self._settings.poll_min
        try:
            poll_result = await spans.poll(self._session, self._lease.worker.id, self._scope)
            self._next_due = poll_result.next_due
            if poll_result.claimable:
                for claimer in self._producers.claimers:
                    claimer.work_available.set()
            if poll_result.finalizable:
                self._finalizer.call()
            if poll_result.news:
                self._outbox.call()
            if poll_result.maintenance_due:
                await maintenance.attend(
                    self._session,
                    self._objects,
                    self._settings.results_retention,
                    self._settings.operations_retention,
                )
        except StoreUnavailable as error:
            _log.warning("cannot poll", reason=str(error))
            return True
        soon = poll_result.next_free is not None and poll_result.next_free < _SOON
        return (
            soon
            or poll_result.claimable
            or poll_result.finalizable
            or poll_result.maintenance_due
            or poll_result.news
        )

    async def _wait(self) -> None:
        # Some more than the interval, at random: a crowd of idle workers must not ask in step.
        seconds = self._interval * random.uniform(1.0, 1.2)
        self._interval = min(self._interval * 2, self._settings.poll_max)
        if self._next_due is not None and self._next_due > 0:
            seconds = min(seconds, self._next_due + 0.005)
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return

"""Renews the lease while anything is held, and reports what the worker does; silent otherwise.

It runs in the same event loop as everything else on purpose: a blocked loop sends no heartbeat, so another
worker takes over its work.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from batchline.config.settings import WorkerSettings
from batchline.model import KeyLoad
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.service import Service

_log = structlog.get_logger("batchline.heartbeat")


class Heartbeat(Service):
    name = "heartbeat"

    def __init__(
        self,
        session: Session,
        lease: Lease,
        settings: WorkerSettings,
        holding: Callable[[], bool],
        loads: Callable[[], Sequence[KeyLoad]] = tuple,
    ) -> None:
        super().__init__()
        self._session = session
        self._lease = lease
        self._settings = settings
        self._holding = holding
        self._loads = loads

    def wake(self) -> None:
        """Renew now. A drain does not wait for a renewal, so the heartbeat stays idle."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.renew_every):
                    await self._woken.wait()
            self._woken.clear()
            if not self._holding():
                self._lease.release()
            elif self._lease.lost:
                self._lease.abandon()
            else:
                await self._renew()

    async def _renew(self) -> None:
        requested_at = self._lease.now()
        worker = self._lease.worker
        try:
            await spans.renew(self._session, worker, self._loads())
        except StoreUnavailable as error:
            _log.warning("lease not renewed", reason=str(error))
            return
        if self._lease.worker is worker:
            self._lease.renewed(requested_at)

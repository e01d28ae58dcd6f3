"""Frees spans that this worker holds in the database without knowing it.

A claim may have been carried out though its answer never came. The heartbeat would renew such spans without
end. So after a claim without an answer, the reconciler frees every span that the worker does not know.
"""

import asyncio
from collections.abc import Callable

import structlog

from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause
from batchline.worker.service import Service

_log = structlog.get_logger("batchline.reconciler")


class Reconciler(Service):
    """`known_spans` are those of all items in this worker. `claim_lock` lets one producer claim at a time,
    and none while spans are compared: a span that was claimed and is not yet in a buffer would look
    unknown."""

    name = "reconciler"

    def __init__(
        self,
        session: Session,
        lease: Lease,
        known_spans: Callable[[], set[int]],
        on_freed: Callable[[], None],
    ) -> None:
        super().__init__()
        self.claim_lock = asyncio.Lock()
        self._session = session
        self._lease = lease
        self._known_spans = known_spans
        self._on_freed = on_freed
        self._pause = Pause()

    def stop(self) -> None:
        # A worker that leaves releases all that it holds.
        self.idle.set()

    def repair(self) -> None:
        self.wake()

    async def _work(self) -> None:
        try:
            async with self.claim_lock:
                await self._free_unknown()
            self._pause.reset()
        except StoreUnavailable as error:
            _log.warning("cannot look for lost claims", reason=str(error))
            self.wake()
            # They may be free all the same.
            self._on_freed()
            await self._pause.wait()

    async def _free_unknown(self) -> None:
        worker_id = self._lease.worker.id
        found = await spans.unknown_spans(self._session, worker_id, self._known_spans())
        if found:
            for batch_id in await spans.release(self._session, worker_id, found):
                await batches.conclude(self._session, batch_id)
            self._on_freed()

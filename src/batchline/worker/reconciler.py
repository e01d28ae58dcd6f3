"""Spans that this worker holds in the database without knowing it, and how they are found again.

A claim may have been carried out though its answer never came. The heartbeat would keep such spans alive
for ever. So, once track was lost, all that is not known here is freed.
"""

import asyncio
from collections.abc import Callable

import structlog

from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.lease import Lease
from batchline.worker.pause import Pause

_log = structlog.get_logger("batchline.reconciler")


class Reconciler:
    """`known_spans` are those of all items that are somewhere in this worker. `claim_lock` keeps claims away:
    what a producer has claimed and not yet put into its buffer would look like a lost span."""

    def __init__(
        self,
        session: Session,
        lease: Lease,
        known_spans: Callable[[], set[int]],
        claim_lock: asyncio.Lock,
        on_freed: Callable[[], None],
    ) -> None:
        self._session = session
        self._lease = lease
        self._known_spans = known_spans
        self._claim_lock = claim_lock
        self._on_freed = on_freed
        self._reconcile = asyncio.Event()

    @property
    def busy(self) -> bool:
        return self._reconcile.is_set()

    def reconcile(self) -> None:
        """Something may be held that is not known here."""
        self._reconcile.set()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._reconcile.wait()
            try:
                async with self._claim_lock:
                    await self._release()
                pause.reset()
            except StoreUnavailable as error:
                _log.warning("cannot look for lost claims", reason=str(error))
                # They may be free all the same.
                self._on_freed()
                await pause.wait()

    async def _release(self) -> None:
        worker_id = self._lease.worker.id
        found = await spans.unknown_spans(self._session, worker_id, self._known_spans())
        if found:
            for batch_id in await spans.release(self._session, worker_id, found):
                await batches.conclude(self._session, batch_id)
            self._on_freed()
        # Claims are kept away meanwhile, so nothing can have been lost since the look.
        self._reconcile.clear()

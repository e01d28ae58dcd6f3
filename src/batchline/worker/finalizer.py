"""Finalizes batches one after another, when told that there is one."""

import asyncio
from collections.abc import Callable

import structlog

from batchline.engine.finalize import FinalizeMismatch, finalize_one
from batchline.engine.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.lease import Lease

_log = structlog.get_logger("batchline.finalizer")


class Finalizer:
    def __init__(
        self,
        session: Session,
        lease: Lease,
        scope: Scope,
        objects: Objects,
        on_ended: Callable[[Batch], None],
    ) -> None:
        self._session = session
        self._lease = lease
        self._scope = scope
        self._objects = objects
        self._on_ended = on_ended
        self._called = asyncio.Event()
        self._working = False
        # Why the last try did not succeed, for people; None once one has.
        self.trouble: str | None = None

    @property
    def busy(self) -> bool:
        return self._working or self._called.is_set()

    def call(self) -> None:
        self._called.set()

    async def run(self) -> None:
        while True:
            await self._called.wait()
            self._working = True
            self._called.clear()
            try:
                await self._finalize_all()
            finally:
                self._working = False

    async def _finalize_all(self) -> None:
        """Until none is left, or one fails: a poll will bring us back to that."""
        try:
            while True:
                batch = await finalize_one(
                    self._session, self._objects, self._lease.worker, self._scope.batch_id
                )
                self.trouble = None
                if batch is None:
                    return
                self._on_ended(batch)
        except (StoreUnavailable, ObjectStoreUnavailable, FinalizeMismatch) as error:
            self.trouble = str(error)
            _log.error("cannot finalize", reason=str(error))

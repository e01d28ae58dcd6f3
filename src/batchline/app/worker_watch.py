"""Checks whether a worker of a Python app is connected, while a caller waits for one."""

import asyncio
from uuid import UUID

import structlog

from batchline.app.core import AppCore
from batchline.model import ids
from batchline.operations.errors import DatabaseUnavailable
from batchline.store import stages

# Seconds without any worker after which this is reported, and between two looks. Workers that are stopped and
# started again are back before.
_ABSENT, LOOK_EVERY = 20.0, 5.0

_log = structlog.get_logger("batchline.app")


async def is_worker_connected(core: AppCore) -> bool:
    async with core.session() as session:
        core.worker_seen = await stages.worker_connected(session)
    return core.worker_seen


class WorkerWatch:
    """Logs once that the last worker has disconnected, and again after another one has come and gone.
    `leaves`: the caller must then decide again who runs the batch."""

    def __init__(self, core: AppCore, batch_id: UUID, *, leaves: bool) -> None:
        self._core = core
        self._batch_id = batch_id
        self._leaves = leaves
        self._clock = asyncio.get_running_loop().time
        self._seen = self._looked = self._clock()
        self._reported = False

    async def must_leave(self) -> bool:
        """Whether the caller must stop waiting. Queries the database every few seconds at most."""
        now = self._clock()
        if now - self._looked < LOOK_EVERY:
            return False
        self._looked = now
        try:
            connected = await is_worker_connected(self._core)
        except DatabaseUnavailable:
            # The caller has logged it. Who is connected is not known.
            connected = True
        if connected:
            self._seen, self._reported = now, False
            return False
        if now - self._seen < _ABSENT or self._reported:
            return False
        self._reported = True
        self._report()
        return self._leaves

    def _report(self) -> None:
        name = ids.show(ids.BATCH, self._batch_id)
        if self._leaves:
            _log.warning("the last worker of a Python app has gone", batch=name)
        else:
            _log.warning("no worker of a Python app is connected; waiting for one", batch=name)

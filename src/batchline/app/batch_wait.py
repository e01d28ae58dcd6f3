"""One wait for a batch. Who runs it is decided at the beginning, and again if the last worker goes away."""

import asyncio
from uuid import UUID

import structlog

from batchline.app import waiting
from batchline.app.core import AppCore
from batchline.app.progress import BatchProgress
from batchline.model import ids
from batchline.operations.errors import DatabaseUnavailable

# Seconds without any worker after which this is reported, and between two looks. Workers that are stopped and
# started again are back before.
_ABSENT, _LOOK_EVERY = 20.0, 5.0

_log = structlog.get_logger("batchline.app")


class BatchWait:
    """`here` as of `SubmittedBatch.wait`."""

    def __init__(self, core: AppCore, batch_id: UUID, *, here: bool | None) -> None:
        self._core = core
        self._batch_id = batch_id
        self._here = here

    async def ended(self, *, bar: bool, timeout: float | None) -> BatchProgress:
        """The progress of the batch, when it has ended. Raises TimeoutError and LookupError."""
        async with asyncio.timeout(timeout) as limit:
            while not (progress := await self._last_progress(bar, limit)).ended:
                batch = await waiting.read_batch(self._core, self._batch_id)
                if waiting.missing_operations(self._core, batch):
                    # Only a worker of another app can run it.
                    self._here = False
        return progress

    async def _last_progress(self, bar: bool, limit: asyncio.Timeout) -> BatchProgress:
        """Until the batch has ended, or somebody else must run it."""
        async with waiting.worked_on(self._core, self._batch_id, self._here) as runs_here:
            watch = None
            if not runs_here:
                watch = WorkerWatch(self._core, self._batch_id, leaves=self._here is None)
            try:
                return await waiting.until_ended(self._core, self._batch_id, bar=bar, watch=watch)
            except asyncio.CancelledError:
                # As by Ctrl-C. Before the worker has stopped, which may take a while.
                if runs_here and not limit.expired():
                    self._say_how_to_continue()
                raise

    def _say_how_to_continue(self) -> None:
        name = ids.show(ids.BATCH, self._batch_id)
        _log.warning(
            f'finishing what runs; the batch has not ended: continue with app.sync.batch("{name}").wait(), or'
            " run `batchline worker module:app`"
        )


class WorkerWatch:
    """Reports that no worker is connected any more, once for each time. `leaves`: whoever waits must then
    decide again who runs the batch."""

    def __init__(self, core: AppCore, batch_id: UUID, *, leaves: bool) -> None:
        self._core = core
        self._batch_id = batch_id
        self._leaves = leaves
        self._clock = asyncio.get_running_loop().time
        self._seen = self._looked = self._clock()
        self._reported = False

    async def must_leave(self) -> bool:
        """Looks, if the last look was some seconds ago."""
        now = self._clock()
        if now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        try:
            connected = await waiting.is_worker_connected(self._core)
        except DatabaseUnavailable:
            # Whoever waits has reported it. Nobody knows who is connected.
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

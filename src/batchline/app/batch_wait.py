"""One wait for a batch. Who runs it is decided at the beginning, and again if the last worker goes away."""

import asyncio
from uuid import UUID

import structlog

from batchline.app import waiting
from batchline.app.core import AppCore
from batchline.app.progress import BatchProgress
from batchline.app.worker_watch import WorkerWatch
from batchline.model import ids

_log = structlog.get_logger("batchline.app")


class BatchWait:
    """`here` as of `SubmittedBatch.wait`. `advice`: what is said when the wait is interrupted."""

    def __init__(
        self, core: AppCore, batch_id: UUID, *, here: bool | None, advice: str | None = None
    ) -> None:
        self._core = core
        self._batch_id = batch_id
        self._here = here
        self._advice = advice or _how_to_continue(batch_id)

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
                    _log.warning(self._advice)
                raise


def _how_to_continue(batch_id: UUID) -> str:
    name = ids.show(ids.BATCH, batch_id)
    return (
        f'finishing what runs; the batch has not ended: continue with app.sync.batch("{name}").wait(), or'
        " run `batchline worker module:app`"
    )

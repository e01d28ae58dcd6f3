"""Works on the batch of a `run` over rows in this process, and shows a progress bar."""

import asyncio

import structlog
from msgspec.structs import replace

from batchline.app.bar import ProgressBar
from batchline.app.models.model_worker import Listening, model_worker
from batchline.app.models.row_order import RowOrder
from batchline.app.progress import progress_of
from batchline.app.runtime import Runtime
from batchline.config.settings import WorkerSettings
from batchline.model import Batch, ids
from batchline.operations.errors import BatchlineError
from batchline.store import batches, failures
from batchline.store.errors import StoreUnavailable
from batchline.store.session import Session
from batchline.worker.worker import Worker

_REFRESH = 0.25
# It ends with an error when finalizing has failed this often, about half a minute after the first failure.
_FINALIZE_TRIES = 6
_AGAIN = "no answer is lost: the same call again continues"

_log = structlog.get_logger("batchline.run")


class RunPaused(BatchlineError):
    """A rule has paused the batch: too many rows fail."""


async def work(order: RowOrder, runtime: Runtime, session: Session, batch: Batch) -> Batch:
    """Run the batch until it has ended. Raises RunPaused and BatchlineError."""
    ended = asyncio.Event()
    settings = WorkerSettings(concurrency=order.upstream.concurrency)
    listening = Listening(on_ended=lambda _: ended.set())
    async with model_worker(runtime, batch.id, order.settings, settings, listening) as (worker, _):
        working = asyncio.create_task(worker.run())
        try:
            with ProgressBar(order.progress) as bar:
                return await _watched(order, session, batch, bar, ended, working, worker)
        finally:
            worker.stop()
            # After Ctrl-C, what is in flight is sent again by the next call, under the same key.
            if _cancelled():
                worker.stop()
            await asyncio.gather(working, return_exceptions=True)


async def _watched(
    order: RowOrder,
    session: Session,
    batch: Batch,
    bar: ProgressBar,
    ended: asyncio.Event,
    working: "asyncio.Task[None]",
    worker: Worker,
) -> Batch:
    while True:
        try:
            batch = await batches.get(session, batch.id) or batch
            await _show(order, session, batch, bar)
            if batch.ended_at is not None:
                return batch
            await _check(session, batch, worker)
        except StoreUnavailable as error:
            _log.warning("waiting for the database", reason=str(error))
        if working.done():
            await working
            raise BatchlineError(f"the worker has stopped; {_AGAIN}")
        waits = [working, asyncio.ensure_future(ended.wait())]
        try:
            await asyncio.wait(waits, timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits[1].cancel()


async def _show(order: RowOrder, session: Session, batch: Batch, bar: ProgressBar) -> None:
    if order.progress:
        found = await progress_of(session, batch)
        bar.show(replace(found, stages={order.template.model or "": next(iter(found.stages.values()))}))


async def _check(session: Session, batch: Batch, worker: Worker) -> None:
    """Raises RunPaused, and BatchlineError if the batch cannot end."""
    name = ids.show(ids.BATCH, batch.id)
    if batch.finalize_failures >= _FINALIZE_TRIES:
        raise BatchlineError(f"{name} cannot write its files: {batch.finalize_error}; {_AGAIN}")
    if batch.pause_rule is None or worker.holding():
        return
    causes = await failures.causes(session, batch)
    cause = f": {causes[0].code}: {causes[0].message}" if causes else ""
    raise RunPaused(
        f"{name} is paused, because {batch.failed:,} of {batch.finished:,} rows have failed{cause};"
        f" remove the cause, then make the same call again: {_AGAIN}"
    )


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

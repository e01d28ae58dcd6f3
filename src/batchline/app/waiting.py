"""Waits until a batch has ended, and runs its items here if no worker does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import structlog

from batchline.app import worker_watch
from batchline.app.app_worker import worker_settings, working
from batchline.app.bar import ProgressBar
from batchline.app.core import AppCore
from batchline.app.errors import translated
from batchline.app.progress import BatchProgress, progress_of
from batchline.app.scheduling import run_callbacks
from batchline.app.worker_watch import WorkerWatch, is_worker_connected
from batchline.model import Batch, ids
from batchline.model.emission import PYTHON
from batchline.operations.errors import DatabaseUnavailable
from batchline.operations.http_stage import HttpStage
from batchline.operations.operation import AnyOperation
from batchline.store import batches
from batchline.store.python_results import FirstResult

# Seconds between two looks: while somebody watches, and if notifications get lost.
_REFRESH, _FALLBACK = 0.25, 2.0
# If there was a worker before, a call waits so long for its result before it looks for workers again.
_GRACE = 0.1

_log = structlog.get_logger("batchline.app")


async def read_batch(core: AppCore, batch_id: UUID) -> Batch:
    """Raises LookupError."""
    async with core.session() as session:
        batch = await batches.of_tenant(session, core.location.tenant, batch_id)
    if batch is None:
        raise LookupError(f"there is no batch {ids.show(ids.BATCH, batch_id)}")
    return batch


async def read_progress(core: AppCore, batch_id: UUID) -> BatchProgress:
    """Raises LookupError."""
    batch = await read_batch(core, batch_id)
    async with core.session() as session:
        return await progress_of(session, batch)


async def until_ended(
    core: AppCore, batch_id: UUID, *, bar: bool, watch: WorkerWatch | None = None
) -> BatchProgress:
    """The last progress. The batch has ended, unless the `watch` has ended the wait."""
    notices = (await core.resources()).notices()
    paused = False
    with ProgressBar(bar, lambda name: _title(core, name)) as displayed, notices.expected(batch_id) as notice:
        while True:
            # Whatever arrives from now on is news: the answer may be older.
            notice.clear()
            progress = await _read_patiently(core, batch_id)
            if progress is not None:
                displayed.show(progress)
                if progress.ended:
                    return progress
                if progress.status == "paused" and not paused:
                    _log.warning("the batch is paused", batch=ids.show(ids.BATCH, batch_id))
                paused = progress.status == "paused"
                if watch is not None and not paused and await watch.must_leave():
                    return progress
            await notice.wait(_REFRESH if bar else _FALLBACK)


def _title(core: AppCore, name: str) -> str:
    """The declared name of a stage."""
    operation = core.catalog.find(name)
    return operation.settings.name if isinstance(operation, HttpStage) else name


async def first_result(core: AppCore, batch_id: UUID, *, last: bool) -> FirstResult:
    """The result of the batch's first item, when it has ended. Runs the batch here if no worker does. `last`:
    it is the only item."""
    answer = (await core.resources()).first_results().expect(batch_id, last=last)
    try:
        if core.worker_seen:
            await asyncio.wait([answer], timeout=_GRACE)
        while not answer.done():
            async with worked_on(core, batch_id, None) as here:
                # A worker of this process must not leave before the batch has ended. Others end it later.
                if here:
                    await until_ended(core, batch_id, bar=False)
                    await asyncio.wait([answer])
                else:
                    await _until_done_or_alone(core, batch_id, answer)
        return await answer
    finally:
        answer.cancel()


async def _until_done_or_alone(core: AppCore, batch_id: UUID, answer: "asyncio.Future[FirstResult]") -> None:
    """Wait for the answer, until no worker is connected any more."""
    watch = WorkerWatch(core, batch_id, leaves=True)
    while not answer.done() and not await watch.must_leave():
        await asyncio.wait([answer], timeout=worker_watch.LOOK_EVERY)


async def _read_patiently(core: AppCore, batch_id: UUID) -> BatchProgress | None:
    """None if the database does not answer now: a batch survives a restart of it, and so does who waits."""
    try:
        return await read_progress(core, batch_id)
    except DatabaseUnavailable as error:
        _log.warning("cannot look at the batch", batch=ids.show(ids.BATCH, batch_id), reason=str(error))
        await asyncio.sleep(_REFRESH)
        return None


@asynccontextmanager
async def worked_on(core: AppCore, batch_id: UUID, here: bool | None) -> AsyncIterator[bool]:
    """Run the batch in this process meanwhile, if `here` is true, or if it is None and no worker of a Python
    app is connected. Yields whether it does."""
    if here is False or (here is None and await is_worker_connected(core)):
        yield False
        return
    batch = await read_batch(core, batch_id)
    if batch.ended_at is not None:
        yield False
        return
    if here is None:
        # Once as a warning: by default, nothing else is displayed.
        say = _log.info if core.reported_here else _log.warning
        core.reported_here = True
        say("no worker of a Python app is connected, so the items run in this process")
    async with _worker_of(core, batch):
        yield True


@asynccontextmanager
async def _worker_of(core: AppCore, batch: Batch) -> AsyncIterator[None]:
    core.catalog.check()
    operations = _operations(core, batch)
    opened = await core.opened()
    caller = asyncio.current_task()
    assert caller is not None
    async with (
        opened.runtime.kept_running(),
        working(opened, core, operations, worker_settings(operations), batch_id=batch.id) as worker,
    ):
        running = asyncio.create_task(worker.run())
        running.add_done_callback(
            cancel_caller := lambda done: None if worker_ends(done) else caller.cancel()
        )
        try:
            try:
                yield
                await run_callbacks(core, worker, batch)
            finally:
                running.remove_done_callback(cancel_caller)
                worker.stop()
                await asyncio.wait([running])
        except asyncio.CancelledError:
            if not running.done() or worker_ends(running):
                raise
            caller.uncancel()
        # What has ended the worker, also if it was while it stopped.
        if not worker_ends(running):
            with translated():
                await running


def worker_ends(running: "asyncio.Task[None]") -> bool:
    """Whether it has ended because it was told to, and not with an error."""
    return running.cancelled() or running.exception() is None


def missing_operations(core: AppCore, batch: Batch) -> list[str]:
    """Names of operations of the batch that this app does not have."""
    names = (url.removeprefix(PYTHON) for url in batch.settings.stages)
    return [name for name in names if core.catalog.find(name) is None]


def _operations(core: AppCore, batch: Batch) -> list[AnyOperation]:
    if missing := missing_operations(core, batch):
        raise LookupError(
            f"this app has no operation {missing[0]!r}, so it cannot run the batch; pass here=False to wait"
            " for a worker that has it"
        )
    found = (core.catalog.find(url.removeprefix(PYTHON)) for url in batch.settings.stages)
    return [operation for operation in found if operation is not None]

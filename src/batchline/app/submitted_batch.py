"""A batch of an app that was submitted: its progress, its results, and what can be done with it."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Generic, Literal
from uuid import UUID

from batchline.app import submission, waiting
from batchline.app.batch_wait import BatchWait
from batchline.app.blocking import BlockingBatch
from batchline.app.core import AppCore
from batchline.app.errors import translated
from batchline.app.item_blocks import errors_of_sources, item_blocks
from batchline.app.progress import BatchProgress
from batchline.app.results import ItemResult, ResultReader, result_of
from batchline.app.spooled_blocks import spooled
from batchline.batches import deletion
from batchline.batches.deletion import NotDeletable
from batchline.batches.retry import BatchGone, NotRetryable
from batchline.batches.retry import retry as retry_lines
from batchline.model import RetrySelection, Unfinished, ids
from batchline.model.emission import PYTHON
from batchline.operations.codec import ItemCodec, ItemT, ResultT
from batchline.operations.errors import BatchClosed, BatchlineError
from batchline.operations.operation import PythonOperation
from batchline.store import batches, feeding
from batchline.store.guest import long_transaction
from batchline.store.python_results import PythonResult


class SubmittedBatch(Generic[ItemT, ResultT]):
    """A handle: it holds nothing, and can be made again with `app.batch(id)`."""

    def __init__(
        self,
        core: AppCore,
        batch_id: UUID,
        operation: PythonOperation[ItemT, ResultT],
        skipped: int = 0,
    ) -> None:
        self._core = core
        self._id = batch_id
        self._operation = operation
        # Items that were not submitted, because their keys are taken.
        self.skipped = skipped

    def __repr__(self) -> str:
        return f"<batch {self.id} of {self._operation.name!r}>"

    @property
    def id(self) -> str:
        """`batch_…`, for `app.batch` and for commands."""
        return ids.show(ids.BATCH, self._id)

    @property
    def uuid(self) -> UUID:
        """The same as the database has it."""
        return self._id

    @property
    def sync(self) -> "BlockingBatch[ItemT, ResultT]":
        """The same calls for code without an event loop."""
        return BlockingBatch(self, self._core.background)

    async def status(self) -> BatchProgress:
        """How many items are in which state. Raises LookupError."""
        return await waiting.read_progress(self._core, self._id)

    async def wait(
        self, *, timeout: float | None = None, progress: bool = False, here: bool | None = None
    ) -> BatchProgress:
        """Wait until the batch has ended. Raises TimeoutError and LookupError.

        `here`: run its items in this process. None: if no worker of a Python app is connected, or none is any
        more.
        """
        return await BatchWait(self._core, self._id, here=here).ended(bar=progress, timeout=timeout)

    async def results(
        self, *, stage: str | PythonOperation[Any, Any] | None = None
    ) -> AsyncGenerator[ItemResult[ResultT], None]:
        """Results in the order of submission. While the batch runs, wait for the next one."""
        async with aclosing(self.result_pages(stage=stage)) as pages:
            async for page in pages:
                for result in page:
                    yield result

    async def result_pages(
        self, *, stage: str | PythonOperation[Any, Any] | None = None
    ) -> AsyncGenerator[Sequence[ItemResult[ResultT]], None]:
        """The same in blocks, as they are read."""
        name = stage.name if isinstance(stage, PythonOperation) else stage or self._operation.name
        resources = await self._core.resources()
        with translated():
            reader = ResultReader[Any, ResultT](resources, self._id, PYTHON + name)
            async with aclosing(reader.pages(self._codec(name))) as pages:
                async for page in pages:
                    yield page

    async def _first_result(self) -> ItemResult[ResultT]:
        """The result of the first item, when it has ended. Raises LookupError if the batch was deleted."""
        stages = self._core.catalog.stages_of(self._operation)
        found = await waiting.first_result(self._core, self._id, last=len(stages) == 1)
        if found.deleted:
            raise LookupError("the batch was deleted meanwhile")
        stored = PythonResult(0, 1, found.attempt, found.output, b"0")
        return result_of(stored, self._codec(self._operation.name), found.ending)

    async def append(
        self,
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        key: Callable[[ItemT], str] | None = None,
    ) -> int:
        """Add items to a batch that was submitted with `hold` or `keep_open`, in one transaction. Returns
        their number. Raises BatchClosed and InvalidItem."""
        blocks = item_blocks(self._operation, items, key)
        with errors_of_sources():
            # Read before the transaction begins: it keeps workers from storing results of the batch.
            async with aclosing(blocks), spooled(blocks) as read:
                resources = await self._core.resources()
                with translated():
                    async with resources.sessions.stream() as session, long_transaction(session) as inside:
                        return await submission.append(inside, self._id, self._operation.url, read)

    async def release(self) -> None:
        """Accept no more items, and run. Raises BatchClosed if it accepted none."""
        async with self._core.session() as session:
            if not await feeding.release(session, self._id):
                raise BatchClosed("the batch accepted no items: it was released before, or has ended")

    async def cancel(self) -> None:
        """Run no more items. Those that run may finish."""
        await self._close("cancel", "cancelled")

    async def pause(self) -> None:
        """Run no more items until `resume`. Those that run may finish."""
        await self._close("pause", "paused")

    async def resume(self) -> None:
        """Run the items of a paused batch."""
        async with self._core.session() as session:
            resumed = await batches.resume(session, self._id)
        if not resumed:
            await self._refuse("resumed")

    async def retry(self, *, failed: bool = True, unrun: bool = True) -> int:
        """Run failed items, and those that never ran, of an ended batch again. Returns their number."""
        only = {Unfinished.FAILED} if failed else set()
        if unrun:
            only |= {Unfinished.CANCELLED, Unfinished.EXPIRED}
        batch = await waiting.read_batch(self._core, self._id)
        async with self._core.session() as session:
            try:
                return await retry_lines(session, batch, RetrySelection(frozenset(only)))
            except NotRetryable as error:
                if error.code == "nothing_to_retry":
                    return 0
                raise BatchlineError(f"the batch cannot be retried: {error}") from None
            except BatchGone:
                raise LookupError(f"there is no batch {self.id}") from None

    async def delete(self) -> None:
        """Delete an ended batch with its items and results. It cannot be undone."""
        batch = await waiting.read_batch(self._core, self._id)
        objects = (await self._core.opened()).runtime.objects
        async with self._core.session() as session:
            try:
                await deletion.delete(session, objects, batch, force=False)
            except NotDeletable:
                raise BatchlineError(
                    f"the batch is {batch.status.value} and has not ended; cancel it, and wait for its end"
                ) from None

    async def _close(self, how: Literal["cancel", "pause"], done: str) -> None:
        async with self._core.session() as session:
            closed = await batches.close(session, self._id, how)
        if not closed:
            await self._refuse(done)

    async def _refuse(self, act: str) -> None:
        """Raises BatchlineError, unless this was done before."""
        batch = await waiting.read_batch(self._core, self._id)
        before = {
            "cancelled": batch.cancelling_at is not None,
            "paused": batch.paused_at is not None and batch.finalizing_at is None,
            "resumed": False,
        }
        if not before[act]:
            raise BatchlineError(f"the batch cannot be {act}: it is {batch.status.value}")

    def _codec(self, name: str) -> ItemCodec[Any, ResultT]:
        known = self._operation if name == self._operation.name else self._core.catalog.find(name)
        # A result that is not kept is null, whatever its type.
        return ItemCodec() if known is None or not known.options.keep_results else known.codec

"""Blocking calls. They run the coroutines of the async ones on the loop of the app's background thread."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from batchline.app.background import Background, refuse_on_a_loop
from batchline.app.progress import BatchProgress
from batchline.app.results import ItemResult
from batchline.app.submission import SubmitKeywords
from batchline.operations.codec import ItemT, ResultT
from batchline.operations.operation import PythonOperation
from batchline.store.guest import blocking_driver

if TYPE_CHECKING:
    from batchline.app.batchline import Batchline
    from batchline.app.submitted_batch import SubmittedBatch

Page = TypeVar("Page")


class BlockingApp:
    """`app.sync`: the calls of an app, for code without an event loop."""

    def __init__(self, app: "Batchline", background: Background) -> None:
        self._app = app
        self._background = background

    def submit(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        **keywords: Unpack[SubmitKeywords],
    ) -> "BlockingBatch[ItemT, ResultT]":
        """As `app.submit`. `connection` is a blocking one, and is used in this call only."""
        refuse_on_a_loop("app.sync.submit", "await app.submit")
        connection = keywords.pop("connection", None)
        driver = None if connection is None else blocking_driver(connection)
        return self._background.run(self._app._submitted(operation, items, keywords, driver)).sync

    def call(
        self, operation: PythonOperation[ItemT, ResultT], item: ItemT, *, timeout: float | None = None
    ) -> ResultT:
        """One item, and its result. Raises ItemFailed."""
        refuse_on_a_loop("app.sync.call", "await app.call")
        return self._background.run(self._app.call(operation, item, timeout=timeout))

    def batch(self, batch_id: str) -> "BlockingBatch[Any, Any]":
        """A batch that was submitted before. Raises LookupError."""
        refuse_on_a_loop("app.sync.batch", "await app.batch")
        return self._background.run(self._app.batch(batch_id)).sync


class BlockingBatch(Generic[ItemT, ResultT]):
    """The calls of a batch, for code without an event loop."""

    def __init__(self, batch: "SubmittedBatch[ItemT, ResultT]", background: Background) -> None:
        self._batch = batch
        self._background = background

    def __repr__(self) -> str:
        return repr(self._batch)

    @property
    def id(self) -> str:
        return self._batch.id

    def status(self) -> BatchProgress:
        refuse_on_a_loop("batch.status", "await batch.status")
        return self._background.run(self._batch.status())

    def wait(
        self, *, timeout: float | None = None, progress: bool = False, here: bool | None = None
    ) -> BatchProgress:
        refuse_on_a_loop("batch.wait", "await batch.wait")
        return self._background.run(self._batch.wait(timeout=timeout, progress=progress, here=here))

    def results(
        self, *, stage: str | PythonOperation[Any, Any] | None = None
    ) -> Generator[ItemResult[ResultT], None, None]:
        refuse_on_a_loop("batch.results", "async for … in batch.results")
        pages = self._batch.result_pages(stage=stage)
        try:
            # One call for each block of results.
            while (page := self._background.run(_next(pages))) is not None:
                yield from page
        finally:
            self._background.run(_closed(pages))

    def append(
        self,
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        key: Callable[[ItemT], str] | None = None,
    ) -> int:
        refuse_on_a_loop("batch.append", "await batch.append")
        return self._background.run(self._batch.append(items, key=key))

    def release(self) -> None:
        refuse_on_a_loop("batch.release", "await batch.release")
        self._background.run(self._batch.release())

    def cancel(self) -> None:
        refuse_on_a_loop("batch.cancel", "await batch.cancel")
        self._background.run(self._batch.cancel())

    def pause(self) -> None:
        refuse_on_a_loop("batch.pause", "await batch.pause")
        self._background.run(self._batch.pause())

    def resume(self) -> None:
        refuse_on_a_loop("batch.resume", "await batch.resume")
        self._background.run(self._batch.resume())

    def retry(self, *, failed: bool = True, unrun: bool = True) -> int:
        refuse_on_a_loop("batch.retry", "await batch.retry")
        return self._background.run(self._batch.retry(failed=failed, unrun=unrun))

    def delete(self) -> None:
        refuse_on_a_loop("batch.delete", "await batch.delete")
        self._background.run(self._batch.delete())


async def _next(pages: AsyncGenerator[Page, None]) -> Page | None:
    return await anext(pages, None)


async def _closed(pages: AsyncGenerator[Any, None]) -> None:
    await pages.aclose()

"""`Batchline`: an app with operations. Submits batches of them, waits for results, and makes workers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable
from contextlib import aclosing
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, Self, Unpack, overload

from batchline.app import waiting
from batchline.app.app_worker import AppWorker, worker_settings
from batchline.app.background import refuse_on_a_loop
from batchline.app.blocking import BlockingApp
from batchline.app.core import AppCore, AppLocation
from batchline.app.decorating import ChunkDecorator, OperationDecorator
from batchline.app.errors import translated
from batchline.app.governed import GovernedKeywords, GovernedT, governed_operation
from batchline.app.item_blocks import ItemBlock, chained, errors_of_sources, in_one_block, item_blocks
from batchline.app.scheduling import CallbackT, ScheduleDecorator, ScheduleKeywords, check_keywords
from batchline.app.stage_file import stages_in
from batchline.app.submission import PythonSubmission, SubmitKeywords, new_batch, submission_of, submit
from batchline.app.submitted_batch import SubmittedBatch
from batchline.model import ids
from batchline.model.emission import PYTHON
from batchline.operations.callbacks import make_callback
from batchline.operations.codec import ItemCodec, ItemT, ResultT
from batchline.operations.cron import CronTimes
from batchline.operations.errors import InvalidApp, ItemFailed
from batchline.operations.http_stage import HttpStage
from batchline.operations.operation import (
    AnyOperation,
    CallableOperation,
    P,
    PythonOperation,
    make_operation,
)
from batchline.operations.options import OperationOptions
from batchline.operations.outcomes import Parked
from batchline.operations.schedules import make_schedule
from batchline.store.address import parse
from batchline.store.guest import Driver, async_driver, guest


class Batchline:
    """Python functions over many items, with the guarantees of a batch.

    Nothing is opened before the first call that needs the database. One app can be used from several threads
    and event loops.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        data_dir: str | Path | None = None,
        tenant: str = "default",
        objects: str | Path | None = None,
        config: str | Path | None = None,
    ) -> None:
        location = AppLocation(
            database,
            None if data_dir is None else Path(data_dir),
            None if objects is None else str(objects),
            tenant,
        )
        self._core = AppCore(location)
        for stage in () if config is None else stages_in(config):
            self._core.catalog.add(stage)

    def __repr__(self) -> str:
        return f"<app with {len(self._core.catalog)} operations>"

    @overload
    def operation(
        self, function: Callable[Concatenate[ItemT, P], Coroutine[Any, Any, ResultT | Parked]], /
    ) -> CallableOperation[ItemT, ResultT, ItemT, P, Coroutine[Any, Any, ResultT]]: ...
    @overload
    def operation(
        self, function: Callable[Concatenate[ItemT, P], ResultT | Parked], /
    ) -> CallableOperation[ItemT, ResultT, ItemT, P, ResultT]: ...
    @overload
    def operation(
        self,
        *,
        chunk: int,
        name: str | None = None,
        max_attempts: int = 5,
        timeout: float | None = 600,
        concurrency: int | None = None,
        run_in: Literal["loop", "thread", "process"] | None = None,
        emits: Iterable[AnyOperation | str] = (),
        backoff: tuple[float, float] = (0.5, 60),
        collects: AnyOperation | str | None = None,
        by: Literal["batch", "key"] = "batch",
        sink: str | None = None,
        keep_results: bool = True,
    ) -> ChunkDecorator: ...
    @overload
    def operation(
        self,
        *,
        chunk: None = None,
        name: str | None = None,
        max_attempts: int = 5,
        timeout: float | None = 600,
        concurrency: int | None = None,
        run_in: Literal["loop", "thread", "process"] | None = None,
        emits: Iterable[AnyOperation | str] = (),
        backoff: tuple[float, float] = (0.5, 60),
        collects: AnyOperation | str | None = None,
        by: Literal["batch", "key"] = "batch",
        sink: str | None = None,
        keep_results: bool = True,
    ) -> OperationDecorator: ...
    def operation(self, function: Callable[..., Any] | None = None, **keywords: Any) -> Any:
        """Make a function an operation of this app. Raises InvalidApp."""
        known = [name for name in signature(make_operation).parameters if name != "function"]
        if unknown := [name for name in keywords if name not in known]:
            names = ", ".join(known)
            raise TypeError(f"app.operation has no keyword {unknown[0]!r}; it has {names}")

        def decorate(function: Callable[..., Any]) -> AnyOperation:
            operation = make_operation(function, **keywords)
            self._core.catalog.add(operation)
            return operation

        return decorate if function is None else decorate(function)

    @overload
    def governed(self, operation: GovernedT, /) -> GovernedT: ...
    @overload
    def governed(self, /, **keywords: Unpack[GovernedKeywords]) -> Callable[[GovernedT], GovernedT]: ...
    def governed(self, operation: Any = None, /, **keywords: Unpack[GovernedKeywords]) -> Any:
        """Let users of a server submit an operation, with approvals, limits and audit. Raises InvalidApp."""

        def decorate(operation: GovernedT) -> GovernedT:
            self._core.governed.add(governed_operation(self._known(operation), keywords))
            return operation

        return decorate if operation is None else decorate(operation)

    def schedule(
        self,
        expression: str,
        operation: PythonOperation[ItemT, Any],
        *,
        timezone: str = "UTC",
        name: str | None = None,
        catch_up: bool = False,
        **keywords: Unpack[ScheduleKeywords],
    ) -> ScheduleDecorator[ItemT]:
        """Submit a batch of the operation at each time of a cron expression. Raises InvalidApp."""
        times = CronTimes(expression, timezone)
        known = self._known(operation)

        def decorate(function: Callable[..., Any]) -> Any:
            schedule = make_schedule(function, known, times, name=name, catch_up=catch_up, keywords=keywords)
            check_keywords(schedule)
            self._core.schedules.add(schedule)
            return function

        return decorate

    @overload
    def on_batch_end(self, function: CallbackT, /) -> CallbackT: ...
    @overload
    def on_batch_end(
        self, operation: AnyOperation | None = None, /, *, name: str | None = None
    ) -> Callable[[CallbackT], CallbackT]: ...
    def on_batch_end(self, given: Any = None, /, *, name: str | None = None) -> Any:
        """Call a function after each batch of this app has ended, or of one operation. Raises InvalidApp."""
        operation = self._known(given) if isinstance(given, PythonOperation) else None

        def decorate(function: CallbackT) -> CallbackT:
            self._core.callbacks.add(make_callback(function, operation, name=name))
            return function

        return decorate if given is None or operation is not None else decorate(given)

    def stage(self, name: str) -> PythonOperation[dict[str, Any], dict[str, Any]]:
        """A stage that `config` declares, as an operation over dicts. Raises InvalidApp."""
        found = self._core.catalog.find(name)
        if isinstance(found, HttpStage):
            return found
        names = ", ".join(each.name for each in self._core.catalog if isinstance(each, HttpStage))
        hint = (
            f"it has {names}" if names else 'give a file that declares it: Batchline(config="batchline.toml")'
        )
        raise InvalidApp(f"this app has no stage {name!r}; {hint}")

    @property
    def operations(self) -> dict[str, AnyOperation]:
        """All operations by name."""
        return {operation.name: operation for operation in self._core.catalog}

    @property
    def sync(self) -> BlockingApp:
        """The same calls for code without an event loop."""
        return BlockingApp(self, self._core.background)

    async def submit(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        **keywords: Unpack[SubmitKeywords],
    ) -> SubmittedBatch[ItemT, ResultT]:
        """Create a batch with all its items, or nothing. Raises InvalidItem."""
        connection = keywords.pop("connection", None)
        driver = None if connection is None else await async_driver(connection)
        return await self._submitted(operation, items, keywords, driver)

    @overload
    async def amap(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: Literal[False] = False,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT]: ...
    @overload
    async def amap(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: bool,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT | ItemFailed]: ...
    async def amap(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: bool = False,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT] | list[ResultT | ItemFailed]:
        """Submit, wait, and return the results in the order of the items. Raises ItemFailed."""
        for name in ("connection", "hold", "keep_open"):
            if keywords.get(name):
                raise TypeError(f"map waits for the batch, so it takes no {name!r}; use `submit`")
        submission = self._submission(operation, keywords)
        blocks = item_blocks(operation, items, keywords.get("key"))
        with errors_of_sources():
            async with aclosing(blocks):
                first = await anext(blocks, None)
                if first is None:
                    return []
                one_block = in_one_block(items)
                batch = await self._stored(
                    operation, submission, chained(first, blocks), None, one_block=one_block
                )
        await batch.wait()
        results = [result async for page in batch.result_pages() for result in page]
        failed = next((result for result in results if not result.ok), None)
        if failed is not None and not return_exceptions:
            raise failed.failure()
        return [result.value if result.ok else result.failure() for result in results]

    @overload
    def map(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: Literal[False] = False,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT]: ...
    @overload
    def map(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: bool,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT | ItemFailed]: ...
    def map(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        return_exceptions: bool = False,
        **keywords: Unpack[SubmitKeywords],
    ) -> list[ResultT] | list[ResultT | ItemFailed]:
        """As `amap`, for code without an event loop."""
        refuse_on_a_loop("app.map", "await app.amap")
        mapped = self.amap(operation, items, return_exceptions=return_exceptions, **keywords)
        return self._core.background.run(mapped)

    async def call(
        self, operation: PythonOperation[ItemT, ResultT], item: ItemT, *, timeout: float | None = None
    ) -> ResultT:
        """One item, and its result. Raises ItemFailed, InvalidItem and TimeoutError."""
        async with asyncio.timeout(timeout):
            batch = await self.submit(operation, [item])
            try:
                result = await batch._first_result()
            except LookupError as error:
                raise ItemFailed("batch_deleted", str(error), 0, "0") from None
        return result.get()

    async def batch(self, batch_id: str) -> SubmittedBatch[Any, Any]:
        """A batch that was submitted before, here or elsewhere. Raises LookupError."""
        known = ids.read(ids.BATCH, batch_id)
        if known is None:
            raise LookupError(f"{batch_id!r} is not the id of a batch")
        found = await waiting.read_batch(self._core, known)
        if not found.settings.stages:
            raise LookupError(f"{batch_id} is not a batch of a Python operation")
        name = found.settings.stages[0].removeprefix(PYTHON)
        operation = self._core.catalog.find(name) or _unknown(name)
        return SubmittedBatch(self._core, known, operation)

    def worker(
        self,
        *,
        operations: Iterable[AnyOperation | str] | None = None,
        concurrency: int | None = None,
        drain: bool = False,
        lease: float | None = None,
    ) -> AppWorker:
        """A worker for all operations of this app, or for some. Raises InvalidApp."""
        chosen = (
            list(self._core.catalog) if operations is None else [self._known(each) for each in operations]
        )
        if concurrency is not None and concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        settings = worker_settings(chosen, drain=drain, lease=lease)
        return AppWorker(self._core, chosen, settings, concurrency=concurrency)

    async def close(self) -> None:
        """Close all connections, and leave the embedded PostgreSQL. The next call opens them again."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        refuse_on_a_loop("with app", "async with app")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._core.close_blocking()
        return False

    def _known(self, operation: object) -> AnyOperation:
        """The operation of this app. Raises InvalidApp and TypeError."""
        name = operation.name if isinstance(operation, PythonOperation) else operation
        if not isinstance(name, str):
            raise TypeError(f"{operation!r} is not an operation; decorate the function with @app.operation")
        known = self._core.catalog.find(name)
        if known is None:
            raise InvalidApp(f"this app has no operation {name!r}")
        return known

    async def _submitted(
        self,
        operation: PythonOperation[ItemT, ResultT],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        keywords: SubmitKeywords,
        driver: Driver | None,
    ) -> SubmittedBatch[ItemT, ResultT]:
        submission = self._submission(operation, keywords)
        with errors_of_sources():
            async with aclosing(item_blocks(operation, items, keywords.get("key"))) as blocks:
                one_block = in_one_block(items)
                return await self._stored(operation, submission, blocks, driver, one_block=one_block)

    def _submission(self, operation: AnyOperation, keywords: SubmitKeywords) -> PythonSubmission:
        self._known(operation)
        return submission_of(self._core.catalog, self._core.location.tenant, operation, keywords)

    async def _stored(
        self,
        operation: PythonOperation[ItemT, ResultT],
        submission: PythonSubmission,
        blocks: AsyncGenerator[ItemBlock, None],
        driver: Driver | None,
        *,
        one_block: bool,
    ) -> SubmittedBatch[ItemT, ResultT]:
        new = new_batch(submission)
        opened = await self._core.opened()
        with translated():
            if driver is not None:
                async with guest(driver, parse(opened.runtime.url).schema) as inside:
                    skipped = await submit(inside, submission, new, blocks, one_block=one_block)
            else:
                async with opened.loops.here().sessions.stream() as session:
                    skipped = await submit(session, submission, new, blocks, one_block=one_block)
        return SubmittedBatch(self._core, new.id, operation, skipped)


def _unknown(name: str) -> AnyOperation:
    """An operation that this app does not have: its results are plain JSON."""

    def function(item: Any) -> Any:
        raise InvalidApp(f"this app has no operation {name!r}")

    return PythonOperation(name, function, OperationOptions(), ItemCodec[Any, Any]())

"""A worker of an app: runs items of its operations, in this process."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from batchline.app.background import refuse_on_a_loop
from batchline.app.core import AppCore, AppLocation, OpenedApp
from batchline.app.errors import translated
from batchline.app.exit_guard import exit_guard
from batchline.app.item_limit import LimitedExecutor
from batchline.app.runtime import run_async
from batchline.app.scheduling import app_schedules, callback_hooks
from batchline.app.stage_requests import shared_upstream, stage_requests
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.executors.python import PythonExecutor
from batchline.executors.python.collecting import StoredResults
from batchline.executors.python.governed import GovernedExecutor
from batchline.governance.operations import Operation
from batchline.hooks.hook import Hooks
from batchline.model import Batch
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage
from batchline.operations.operation import AnyOperation
from batchline.store.spans import Scope
from batchline.store.stages import PYTHON_WORKER
from batchline.traces.tracing import Tracing
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.observer import WorkerObserver
from batchline.worker.producer import ProducerScope
from batchline.worker.schedule_runner import AppSchedules
from batchline.worker.worker import Worker, WorkerOptions

Around = Callable[[Worker], AbstractAsyncContextManager[None]]

_log = structlog.get_logger("batchline.worker")


@dataclass(frozen=True, slots=True)
class WorkerAttachments:
    """What a command adds to a worker: what runs next to it, who counts what it does, its traces, hooks
    instead of the app's callbacks, the upstreams that get the ids of traces, and budgets of upstreams."""

    around: Around | None = None
    observer: WorkerObserver = field(default_factory=WorkerObserver)
    tracing: Tracing | None = None
    hooks: Hooks | None = None
    traced: Sequence[str] = ()
    budgets: RateBudgets | None = None


class AppWorker:
    """Runs until it is stopped, or with `drain` until there is nothing left to do."""

    def __init__(
        self,
        core: AppCore,
        operations: Sequence[AnyOperation],
        settings: WorkerSettings,
        *,
        concurrency: int | None = None,
    ) -> None:
        self._core = core
        self._operations = operations
        self._settings = settings
        self._concurrency = concurrency
        self._worker: Worker | None = None
        self._stops = 0
        self._serving: asyncio.Task[None] | None = None

    @property
    def operations(self) -> Sequence[str]:
        """The names of those that it runs."""
        return [operation.name for operation in self._operations]

    @property
    def governed(self) -> Sequence[Operation]:
        """The governed operations of the app."""
        return list(self._core.governed)

    @property
    def location(self) -> AppLocation:
        """Where the data of the app is."""
        return self._core.location

    def check(self) -> None:
        """Raises InvalidApp for mistakes in the app, before anything is opened."""
        self._core.catalog.check()
        if not self._operations:
            raise InvalidApp("the app has no operations")

    def configured(self, settings: WorkerSettings) -> "AppWorker":
        """The same with other settings. Concurrency is that of the operations."""
        settings = replace(settings, concurrency=self._settings.concurrency)
        return AppWorker(self._core, self._operations, settings, concurrency=self._concurrency)

    async def database_url(self) -> str:
        """Of the database that the worker uses, which may be the embedded one."""
        return (await self._core.opened()).runtime.url

    def run(self, attached: WorkerAttachments | None = None) -> None:
        """Run in this thread until SIGINT or SIGTERM: what runs is finished. A second one stops at once."""
        refuse_on_a_loop("worker.run()", "await worker.serve()")
        try:
            run_async(self._run(attached or WorkerAttachments()))
        finally:
            self._core.close_blocking()

    async def serve(self, attached: WorkerAttachments | None = None) -> None:
        """Run on this event loop, without signals, until `stop` is called."""
        self.check()
        attached = attached or WorkerAttachments()
        opened = await self._core.opened()
        starting = working(
            opened, self._core, self._operations, self._settings, self._concurrency, attached=attached
        )
        with translated():
            async with starting as it:
                self._worker = it
                for _ in range(self._stops):
                    it.stop()
                try:
                    async with opened.runtime.kept_running(), _beside(it, attached.around):
                        await it.run()
                finally:
                    self._worker = None

    def stop(self) -> None:
        """First call: finish what runs, then end. Second call: end at once."""
        self._stops += 1
        if self._worker is not None:
            self._worker.stop()

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        serving, self._serving = self._serving, None
        assert serving is not None
        self.stop()
        await serving
        self._stops = 0

    async def _run(self, attached: WorkerAttachments) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, self.stop)
        await self.serve(replace(attached, around=lambda worker: _guarded(worker, attached.around)))


@asynccontextmanager
async def _guarded(worker: Worker, around: Around | None) -> AsyncIterator[None]:
    async with exit_guard(worker), _beside(worker, around):
        yield


def _beside(worker: Worker, around: Around | None) -> AbstractAsyncContextManager[None]:
    return nullcontext() if around is None else around(worker)


@asynccontextmanager
async def working(
    opened: OpenedApp,
    core: AppCore,
    operations: Sequence[AnyOperation],
    settings: WorkerSettings,
    concurrency: int | None = None,
    *,
    batch_id: UUID | None = None,
    on_ended: Callable[[Batch], None] | None = None,
    around_executor: Callable[[Executor], Executor] = lambda executor: executor,
    attached: WorkerAttachments | None = None,
) -> AsyncIterator[Worker]:
    """A worker for these operations, or for one batch of them. The caller runs it."""
    attached = attached or WorkerAttachments()
    scopes = [
        ProducerScope(
            Scope(keys=core.governed.keys_of(operation), batch_id=batch_id),
            min(operation.options.concurrency, concurrency or operation.options.concurrency),
            shared_upstream(operation),
        )
        for operation in operations
    ]
    requests = stage_requests(operations, settings, attached.traced, attached.budgets)
    functions: Executor = PythonExecutor(
        core.catalog, collector=StoredResults(opened.runtime.url), http=requests.http
    )
    if core.governed:
        functions = GovernedExecutor(core.governed, functions)
    executor = around_executor(functions)
    if concurrency is not None and len(scopes) > 1:
        executor = LimitedExecutor(executor, concurrency)
    keys = tuple(key for scope in scopes for key in scope.scope.keys or ())
    worker = Worker(
        opened.runtime.url,
        executor,
        opened.runtime.objects,
        settings,
        Scope(keys=keys, batch_id=batch_id),
        WorkerOptions(
            producers=scopes,
            upstreams=requests.upstreams,
            memory=requests.memory,
            on_ended=on_ended,
            hooks=attached.hooks or callback_hooks(core),
            schedules=app_schedules(core, operations) if batch_id is None else AppSchedules(),
            # Programs that wait for a batch rely on such a worker. One for a single batch is no help to them.
            poll_name=PYTHON_WORKER if batch_id is None and _has_functions(operations) else "poll",
            observer=attached.observer,
            tracing=attached.tracing,
        ),
    )
    try:
        yield worker
    finally:
        await executor.close()


def _has_functions(operations: Iterable[AnyOperation]) -> bool:
    """Whether it runs functions of an app, and not only stages of batchline.toml."""
    return not all(isinstance(operation, HttpStage) for operation in operations)


def worker_settings(
    operations: Sequence[AnyOperation], *, drain: bool = False, lease: float | None = None
) -> WorkerSettings:
    total = sum(operation.options.concurrency for operation in operations)
    settings = WorkerSettings(concurrency=max(total, 1), drain=drain)
    if lease is None:
        return settings
    if not 1 <= lease <= 300:
        raise ValueError("lease must be 1 to 300 seconds")
    return WorkerSettings(concurrency=settings.concurrency, drain=drain, lease=lease)

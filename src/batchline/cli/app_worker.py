"""`batchline worker module:app`: a worker for the operations of a Python app, in one process or several."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
import typer

from batchline.app.app_worker import AppWorker, WorkerAttachments
from batchline.app.batchline import Batchline
from batchline.app.core import AppLocation
from batchline.app.loading import load_app
from batchline.cli.app_processes import AppProcesses, run_reloading
from batchline.cli.display.console import CommandError
from batchline.cli.metrics_port import MetricsPort, metrics_socket, ports_of_processes, serving_metrics
from batchline.cli.runtime import folder_of, run_async
from batchline.cli.server_settings import registry
from batchline.cli.tracing import checked
from batchline.cli.worker_report import WorkerCounts, counts_of, reporting
from batchline.config.settings import Settings, WorkerSettings
from batchline.hooks.hook import Hooks
from batchline.operations.errors import BatchlineError
from batchline.traces.tracing import Tracing, open_tracing
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.rate_budgets import budgets_of
from batchline.worker.observer import WorkerObserver
from batchline.worker.worker import Worker

# Options that a worker of an app takes. The others concern upstreams, or are the app's own.
_TAKEN = frozenset(
    (
        *("app", "processes", "reload", "concurrency", "drain", "max_seconds", "max_items", "lease"),
        *("body_memory", "quiet", "until_eof", "as_json", "verbose", "log_json"),
        *("config", "metrics_port", "metrics_host"),
    )
)
_OF_THE_APP = frozenset(("database", "data_dir", "objects"))
# It would count the items of each of the two workers.
_OF_ONE_WORKER = frozenset(("max_items",))

_ELSEWHERE = (
    "the app uses another database, data folder or object store than this command; give both the same, or"
    " leave them out of Batchline(...)"
)

_log = structlog.get_logger("batchline.worker")


@dataclass(frozen=True, slots=True)
class AppOrder:
    """The arguments of the command, checked. `say` prints a report."""

    target: str
    settings: Settings
    concurrency: int | None
    until_eof: bool
    say: Callable[[str], None]


def check_options(context: typer.Context, *, with_upstreams: bool = False) -> None:
    """Raises CommandError for an option that means nothing to a worker of an app."""
    taken = (context.params.keys() - _OF_THE_APP - _OF_ONE_WORKER) if with_upstreams else _TAKEN
    for name in context.params:
        source = context.get_parameter_source(name)
        if name in taken or source is None or source.name != "COMMANDLINE":
            continue
        option = f"--{name.replace('_', '-')}"
        if name in _OF_THE_APP:
            raise CommandError(
                f"{option} is the app's own: give it to Batchline(...), or leave it out there and set"
                " BATCHLINE_DATABASE_URL or BATCHLINE_DATA_DIR"
            )
        if with_upstreams:
            raise CommandError(f"{option} means nothing with --with-upstreams; leave it out")
        raise CommandError(f"{option} means nothing to a worker of a Python app; leave it out")


def served_app(target: str) -> AppWorker:
    """A worker of the app, checked, from which a server learns what the app has. Raises CommandError."""
    with reported_app_errors():
        worker = load_app(target).worker()
        worker.check()
        return worker


def check_location(location: AppLocation, settings: Settings) -> None:
    """Raises CommandError if the app uses other data than the command."""
    check_database(location, settings.database, settings.data_dir)
    if location.objects != settings.server.objects:
        raise CommandError(_ELSEWHERE)


def check_database(location: AppLocation, database: str | None, data_dir: Path | None) -> None:
    """Raises CommandError if the app uses another database than the command."""
    same_folder = location.data_dir is None or folder_of(location.data_dir) == folder_of(data_dir)
    if location.database not in (None, database) or not same_folder:
        raise CommandError(_ELSEWHERE)


def work_for(order: AppOrder) -> WorkerCounts:
    """Run in this process until the worker ends."""
    settings = order.settings
    traces = checked(settings, settings.config)
    with reported_app_errors(), metrics_socket(settings.worker) as sock:
        worker = load_app(order.target).worker(concurrency=order.concurrency)
        metrics = None
        if sock is not None:
            known = registry(settings.server, worker.governed)
            metrics = MetricsPort(sock, settings.server, known, Upstreams())
        beside = _Beside(order)
        _log.info("worker started", pid=os.getpid(), operations=list(worker.operations))
        configured = worker.configured(without_hooks(settings.worker))
        configured.run(_Measured(configured, beside, metrics, open_tracing(traces)).attachments())
        return beside.counts


def work_in_processes(target: str, processes: str, settings: WorkerSettings, *, reload: bool) -> int:
    """Run the same command in child processes until they have ended. Returns the exit code."""
    ports = ports_of_processes(settings, _count(processes))
    if not reload:
        # Here, too: a mistake is reported once, and not by each of them.
        with reported_app_errors():
            load_app(target).worker().check()
    usual = _child_arguments(sys.argv[1:])
    # Of an option that is given twice, the last one counts.
    fleet = AppProcesses([usual if port is None else [*usual, "--metrics-port", str(port)] for port in ports])
    return run_async(run_reloading(fleet) if reload else fleet.run_with_signals())


class AppBeside:
    """A worker of an app next to another worker, on its event loop. Both end together. Without `app`, it is
    that of the order."""

    def __init__(self, order: AppOrder, app: Batchline | None = None) -> None:
        with reported_app_errors():
            self._app = app or load_app(order.target)
            worker = self._app.worker(concurrency=order.concurrency)
            worker.check()
        self.worker = worker.configured(without_hooks(order.settings.worker))
        self._beside = _Beside(order)
        # Instead of the callbacks of the app.
        self.hooks: Hooks | None = None

    @property
    def counts(self) -> WorkerCounts:
        return self._beside.counts

    @asynccontextmanager
    async def running(
        self, other: Worker, metrics: MetricsPort | None, tracing: Tracing | None
    ) -> AsyncIterator[None]:
        """Raises CommandError. The other worker serves the metrics of both, and closes the traces."""

        @asynccontextmanager
        async def watched(worker: Worker) -> AsyncIterator[None]:
            if metrics is not None:
                metrics.watch(worker)
            async with self._beside.running(worker):
                yield

        observer = WorkerObserver() if metrics is None else metrics.observer
        headers_to = self._beside.order.settings.traces.headers_to
        budgets = budgets_of(self._beside.order.settings.server)
        attached = WorkerAttachments(watched, observer, tracing, self.hooks, headers_to, budgets)
        serving = asyncio.create_task(self.worker.serve(attached))
        serving.add_done_callback(lambda done: other.stop() if _has_failed(done) else None)
        try:
            yield
            # It has been stopped, too, or ends when there is nothing left to do.
            with reported_app_errors():
                await serving
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait([serving])
            await self._app.close()


def _has_failed(done: "asyncio.Task[None]") -> bool:
    return done.cancelled() or done.exception() is not None


@dataclass(slots=True)
class _Beside:
    """What runs next to the worker: reports, and the end with its parent."""

    order: AppOrder
    counts: WorkerCounts = field(default_factory=lambda: WorkerCounts(0, 0, 0))

    @asynccontextmanager
    async def running(self, worker: Worker) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        if self.order.until_eof:
            loop.add_reader(sys.stdin, _parent_ended, worker)
        try:
            async with reporting(worker, worker.upstream_views, self.order.say):
                yield
        finally:
            if self.order.until_eof:
                loop.remove_reader(sys.stdin)
            self.counts = counts_of(worker)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The only worker of this process, with its metrics and traces."""

    worker: AppWorker
    beside: _Beside
    metrics: MetricsPort | None
    tracing: Tracing | None

    def attachments(self) -> WorkerAttachments:
        observer = WorkerObserver() if self.metrics is None else self.metrics.observer
        headers_to = self.beside.order.settings.traces.headers_to
        budgets = budgets_of(self.beside.order.settings.server)
        return WorkerAttachments(self._running, observer, self.tracing, traced=headers_to, budgets=budgets)

    @asynccontextmanager
    async def _running(self, worker: Worker) -> AsyncIterator[None]:
        url = await self.worker.database_url()
        try:
            async with (
                serving_metrics(self.metrics, url, worker, self.beside.order.say),
                self.beside.running(worker),
            ):
                yield
        finally:
            if self.tracing is not None:
                await self.tracing.spans.close()


def _parent_ended(worker: Worker) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin)
    worker.stop()


@contextmanager
def reported_app_errors() -> Iterator[None]:
    try:
        yield
    except BatchlineError as error:
        raise CommandError(str(error)) from error


def _count(processes: str) -> int:
    if processes == "auto":
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if not processes.isdecimal() or not 1 <= int(processes) <= 1000:
        raise CommandError(f"--processes {processes!r}: give a number from 1 to 1000, or auto")
    return int(processes)


def _child_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of this command for a child. It ends when its standard input does."""
    kept, skip = ["--until-eof"], False
    for argument in arguments:
        if skip or argument == "--reload" or argument.startswith("--processes="):
            skip = False
        elif argument == "--processes":
            skip = True
        else:
            kept.append(argument)
    return [*kept[1:], kept[0]]


def without_hooks(settings: WorkerSettings) -> WorkerSettings:
    """Hooks of batchline.toml are for workers that read it."""
    return replace(settings, on_end=(), on_end_command=())

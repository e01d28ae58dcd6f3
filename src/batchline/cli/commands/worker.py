"""`batchline worker`: runs submitted batches until it is stopped."""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Annotated

import msgspec
import structlog
import typer
from msgspec.structs import replace

from batchline.app.exit_guard import exit_guard
from batchline.cli import options
from batchline.cli.app_worker import (
    AppBeside,
    AppOrder,
    check_location,
    check_options,
    work_for,
    work_in_processes,
)
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.metrics_port import MetricsPort, metrics_socket, serving_metrics
from batchline.cli.routes import RESERVED_KEYS, UpstreamRoutes
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import (
    check_hook_file,
    check_keys,
    hooks_in,
    read_settings,
    registry,
    with_provider,
    with_upstream,
    without_any,
)
from batchline.cli.stage_worker import stages_beside
from batchline.cli.tracing import checked, traced
from batchline.cli.worker_report import WorkerCounts, added, counts_of, last_line, reporting
from batchline.config.settings import (
    ANY_MODEL,
    ServerSettings,
    Settings,
    TraceSettings,
    WorkerSettings,
)
from batchline.executors.approvals import Approvals
from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor
from batchline.executors.provider import ProviderExecutor
from batchline.executors.routing import RoutingExecutor
from batchline.governance import bulk_actions
from batchline.governance.operations import APPROVALS, BELOW
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.hooks.hook import Hooks
from batchline.model import RELAYED
from batchline.model.concurrency import concurrency_text
from batchline.model.emission import PYTHON
from batchline.secrets.addresses import public_url
from batchline.store.spans import Scope
from batchline.traces.tracing import Tracing
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import budgets_of
from batchline.worker.drain import HeldLines
from batchline.worker.observer import WorkerObserver
from batchline.worker.producers import MAX_OPEN
from batchline.worker.worker import Worker, WorkerOptions

# The server that started it answers requests, so it gets the processor first (benchmark `polling`).
_NICENESS = 5

_log = structlog.get_logger("batchline.worker")


def register(app: typer.Typer) -> None:
    app.command("worker", rich_help_panel=options.PANEL_RUN)(work)


def work(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:APP]",
            help="Run the operations of this Python app instead, such as tasks:app.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto", help="Of an app: so many processes; auto: one per core.", show_default=False
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Of an app: start again when a .py file in this folder changes.")
    ] = False,
    with_upstreams: Annotated[
        bool,
        typer.Option(
            "--with-upstreams",
            help="Of an app: also run what a worker without an app runs: lines and operations of upstreams.",
        ),
    ] = False,
    upstream: options.Upstream = None,
    config: options.Config = None,
    concurrency: options.WorkerConcurrency = None,
    drain: options.Drain = False,
    max_seconds: options.MaxSeconds = None,
    max_items: options.MaxItems = None,
    lease: options.Lease = None,
    body_memory: options.BodyMemory = None,
    listen: options.Listen = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = None,
    provider: options.Provider = None,
    provider_recovery: options.ProviderRecovery = None,
    provider_max_tasks: options.ProviderMaxTasks = None,
    provider_recheck: options.ProviderRecheck = None,
    on_end: options.OnEnd = None,
    on_end_command: options.OnEndCommand = None,
    on_end_timeout: options.OnEndTimeout = None,
    on_end_env: options.OnEndEnv = None,
    unfinished_runs: Annotated[
        bool,
        typer.Option(
            "--unfinished-runs",
            help="Also work on batches of `run`, which otherwise wait until the same `run` continues them.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no reports.")] = False,
    until_eof: Annotated[
        bool,
        typer.Option("--until-eof", hidden=True, help="Stop when stdin closes, as when the parent dies."),
    ] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Run submitted batches.

    Ctrl-C waits for requests in flight. A second one stops at once: the next worker sends those requests
    again, under the same idempotency keys.

    Examples:

        batchline worker
        batchline worker --drain --max-seconds 10m
        batchline worker --unfinished-runs --drain
        batchline worker tasks:app --processes auto
    """
    if app is not None and not (with_upstreams and processes is None and not reload):
        _work_for_app(context, app, concurrency, processes, reload)
        return
    if until_eof:
        # Here and not in the server: threads inherit it, and none has started yet.
        os.nice(_NICENESS)
    with reported_errors(as_json):
        if app is None and (processes is not None or reload or with_upstreams):
            raise CommandError(
                "--processes, --reload and --with-upstreams are for an app: give its module:name, too"
            )
        settings = _with_server_settings(read_settings(context.params), until_eof)
        say = (lambda _: None) if quiet or as_json else _say
        beside = None
        if app is not None:
            check_options(context, with_upstreams=True)
            beside = AppBeside(AppOrder(app, settings, concurrency, False, say))
            location = beside.worker.location
            settings = dataclasses.replace(settings, database=location.url, data_dir=location.data_dir)
            check_location(location, settings)
        server = settings.server
        if provider is not None:
            server = with_provider(
                server,
                upstream,
                provider=provider,
                provider_recovery=provider_recovery,
                provider_max_tasks=provider_max_tasks,
                provider_recheck=provider_recheck,
            )
        check_keys(server)
        if app is None:
            order_of_stages = AppOrder("", settings, None, False, say)
            beside = stages_beside(context, settings, with_upstream(server, upstream), order_of_stages)
        operations = registry(server, () if beside is None else beside.worker.governed)
        check_hook_file(settings)
        hooks = hooks_in(settings.worker)
        if beside is not None and app is None and settings.worker.drain:
            # The worker for lines may have drained before the batches of stages end.
            beside.hooks = hooks
        traces = checked(settings, settings.config)
        worker = settings.worker
        at = (database, data_dir) if beside is None else (settings.database, settings.data_dir)
        with (
            metrics_socket(worker) as sock,
            open_runtime(*at, objects=server.objects, to_work=True) as runtime,
        ):
            order = WorkOrder(
                *(worker, server, operations, hooks, upstream, listen, until_eof, unfinished_runs, say),
                traces,
                sock,
                beside,
            )
            counts, held = run_async(_work(runtime, order))
            if as_json:
                print_json({**msgspec.structs.asdict(counts), "held": msgspec.to_builtins(held)})
                return
            if not quiet:
                out().print(last_line(counts), markup=False)
            for each in held:
                err().print(f"warning: {_describe_held(each)}", markup=False)


def _with_server_settings(settings: Settings, until_eof: bool) -> Settings:
    """With what workers need of the settings of the server. All workers of this process get it."""
    server = settings.server
    # Without a server, results are kept until somebody deletes them.
    served = bool(settings.config or until_eof)
    worker = dataclasses.replace(
        settings.worker,
        allow_private_webhooks=server.allow_private_webhooks,
        results_retention=server.results_retention if served else None,
        operations_retention=server.operations_retention if served else None,
        events_retention=server.events_retention,
    )
    return dataclasses.replace(settings, worker=worker)


def _work_for_app(
    context: typer.Context, target: str, concurrency: int | None, processes: str | None, reload: bool
) -> None:
    given = context.params
    quiet, as_json = given["quiet"], given["as_json"]
    with reported_errors(as_json):
        check_options(context, with_upstreams=given["with_upstreams"])
        settings = read_settings(given)
        if processes is not None or reload:
            raise typer.Exit(work_in_processes(target, processes or "1", settings.worker, reload=reload))
        say = (lambda _: None) if quiet or as_json else _say
        counts = work_for(AppOrder(target, settings, concurrency, given["until_eof"], say))
        if as_json:
            print_json({**msgspec.structs.asdict(counts), "held": []})
        elif not quiet:
            out().print(last_line(counts), markup=False)


def _say(line: str) -> None:
    out().print(f"{datetime.now():%H:%M:%S}  {line}", markup=False)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkOrder:
    """The arguments of the command, checked. `say` prints a report."""

    settings: WorkerSettings
    server: ServerSettings
    operations: Registry
    hooks: Hooks
    upstream: str | None
    listen: str | None
    until_eof: bool
    unfinished_runs: bool
    say: Callable[[str], None]
    traces: TraceSettings
    # Where metrics are served.
    metrics: socket.socket | None
    # A worker for the operations of a Python app.
    beside: AppBeside | None = None


async def _work(runtime: Runtime, order: WorkOrder) -> tuple[WorkerCounts, Sequence[HeldLines]]:
    """Items that it worked on, and what a worker that has drained leaves to the operator."""
    async with traced(order.traces) as tracing:
        return await _work_traced(runtime, order, tracing)


async def _work_traced(
    runtime: Runtime, order: WorkOrder, tracing: Tracing | None
) -> tuple[WorkerCounts, Sequence[HeldLines]]:
    settings, server, operations, upstream = order.settings, order.server, order.operations, order.upstream
    # Models that no upstream of the file names go to the upstream of the command line, if there is one.
    routed = server if upstream is None or _serves(server, upstream) else without_any(server)
    # Only a process that has the functions can run Python operations.
    reserved = (PYTHON, RELAYED, *(() if order.unfinished_runs else RESERVED_KEYS))
    excluded = (*(() if operations else (BELOW,)), *reserved)
    scope = Scope(excluded_prefixes=excluded)
    routes = UpstreamRoutes(routed, operations, settings, scope, upstream)
    lasting = routes.lasting()
    runners = (len(lasting) + MAX_OPEN) * routes.slots
    memory = BodyMemory(settings.body_memory, runners)
    anthropic = [each.base_url for each in server.upstreams if each.batch_api == "anthropic"]
    upstreams = Upstreams(traced=order.traces.headers_to, budgets=budgets_of(server), anthropic=anthropic)
    routes.prepare(upstreams)
    http = HttpExecutor(upstreams, default=upstream, memory=memory)
    providers = ProviderExecutor(http)
    routing = RoutingExecutor(routed.upstreams, providers)
    rules = Rules(operations, server.limits, server.operation_window)
    approvals = Approvals(runtime.url, rules)
    executor = OperationExecutor(
        operations,
        routed.upstreams,
        http,
        routing,
        {APPROVALS: approvals},
    )
    metrics = None
    if order.metrics is not None:
        known = with_upstream(server, upstream)
        metrics = MetricsPort(order.metrics, known, operations, upstreams)
    worker = Worker(
        runtime.url,
        executor,
        runtime.objects,
        settings,
        scope,
        WorkerOptions(
            producers=lasting,
            discovered=routes.discovered(),
            escalations=routes.escalations(),
            relays=routes.relays(),
            collecting=routes.collecting(),
            upstreams=upstreams,
            memory=memory,
            cancel_task=lambda item: providers.cancel(routing.routed(item)),
            continue_action=lambda session: bulk_actions.continue_one(rules, session),
            hooks=order.hooks,
            listen_url=order.listen,
            observer=WorkerObserver() if metrics is None else metrics.observer,
            tracing=tracing,
        ),
    )
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, worker, order.beside)
    if order.until_eof:
        loop.add_reader(sys.stdin, _parent_ended, worker, order.beside)
    _log.info("worker started", pid=os.getpid(), concurrency=concurrency_text(settings.concurrency))
    try:
        async with (
            runtime.kept_running(),
            exit_guard(worker),
            serving_metrics(metrics, runtime.url, worker, order.say),
            reporting(worker, upstreams.views, order.say),
            nullcontext() if order.beside is None else order.beside.running(worker, metrics, tracing),
        ):
            await worker.run()
    finally:
        await executor.close()
        await approvals.close()
    counts = added(counts_of(worker), WorkerCounts(0, 0, 0) if order.beside is None else order.beside.counts)
    return counts, [replace(held, upstream=public_url(held.upstream)) for held in worker.held]


def _describe_held(held: HeldLines) -> str:
    full = " They fill its limit of tasks, so other lines wait behind them." if held.limit_full else ""
    return (
        f"{held.lines:,} lines are held as submission_unknown: the provider of {held.upstream} may have"
        f" accepted them.{full} To submit them again, set provider_recovery to resubmit (of a batch API:"
        " batch_recovery) and run a worker"
        " after five minutes. To give them up, cancel their batches."
    )


def _serves(server: ServerSettings, upstream: str) -> bool:
    """Whether the upstream of the command line is already the one for any model."""
    return any(up.base_url == upstream and ANY_MODEL in up.models for up in server.upstreams)


def _parent_ended(worker: Worker, beside: AppBeside | None) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin)
    _log.warning("the server has ended; stopping after the requests in flight")
    _stop(worker, beside)


def _stop(worker: Worker, beside: AppBeside | None) -> None:
    worker.stop()
    if beside is not None:
        beside.worker.stop()

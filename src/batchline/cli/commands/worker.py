"""`batchline worker`: works on whatever batches there are, until told to stop."""

import asyncio
import os
import signal
import sys
from typing import Annotated

import structlog
import typer
from msgspec.structs import replace

from batchline.cli import options
from batchline.cli.display.console import out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.exit_guard import exit_guard
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import check_keys, find_config, registry, server_settings, without_any
from batchline.config.settings import ANY_MODEL, ServerSettings, UpstreamSettings, WorkerSettings
from batchline.executors.approvals import Approvals
from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor
from batchline.executors.routing import RoutingExecutor
from batchline.governance.governor import Governor
from batchline.governance.operations import APPROVALS, BELOW, url_of
from batchline.governance.registry import Registry
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import MIB, BodyMemory
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import MAX_OPEN
from batchline.worker.worker import Worker, WorkerOptions

_log = structlog.get_logger("batchline.worker")


def register(app: typer.Typer) -> None:
    app.command("worker")(work)


def work(
    upstream: options.Upstream = None,
    config: options.Config = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            max=20_000,
            help="Requests in flight at once at each upstream; those of --config say so themselves.",
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Leave when there is nothing left to do.")] = False,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0.1, metavar="S", help="Leave after this long.")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", min=1.0, metavar="S", help="What a crash costs at most.")
    ] = 15.0,
    body_memory: Annotated[
        int,
        typer.Option(
            "--body-memory",
            envvar="BATCHLINE_BODY_MEMORY",
            min=16,
            metavar="MIB",
            help="Memory for requests and answers, whatever upstreams answer.",
        ),
    ] = 512,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            envvar="BATCHLINE_LISTEN_URL",
            metavar="URL",
            help="The database's own address, where --database is a pooler's: to hear of batches at once.",
        ),
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Stop when stdin ends, as when its parent dies.")
    ] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Work on batches that others have submitted.

    Ctrl-C waits for what is in flight; a second one leaves at once, and what was in flight is sent again
    by whoever comes next, under the same idempotency keys.
    """
    with reported_errors(as_json):
        found = find_config(config)
        server = server_settings(found, objects)
        check_keys(server)
        operations = registry(server)
        # Where there is no server, results are kept until somebody deletes them.
        served = bool(found or until_eof)
        with open_runtime(database, data_dir, objects=server.objects, to_work=True) as runtime:
            settings = WorkerSettings(
                concurrency=concurrency or _concurrency(server),
                lease=lease,
                body_memory=body_memory * MIB,
                drain=drain,
                max_seconds=max_seconds,
                allow_private_webhooks=server.allow_private_webhooks,
                results_retention=server.results_retention if served else None,
                operations_retention=server.operations_retention if served else None,
            )
            claimed = run_async(_work(runtime, settings, server, operations, upstream, listen, until_eof))
            if as_json:
                print_json({"claimed": claimed})
            else:
                out().print(f"worked on {claimed:,} items")


async def _work(
    runtime: Runtime,
    settings: WorkerSettings,
    server: ServerSettings,
    operations: Registry,
    upstream: str | None,
    listen: str | None,
    until_eof: bool,
) -> int:
    # What no upstream of the settings takes goes to that of the command line, if there is one.
    routed = server if upstream is None else without_any(server)
    scope = Scope(excluded_prefixes=() if operations else (BELOW,))
    scopes, discovered = scopes_for_producers(routed, operations, settings, scope, upstream)
    runners = sum(producer_scope.concurrency for producer_scope in scopes) + MAX_OPEN * discovered.concurrency
    memory, upstreams = BodyMemory(settings.body_memory, runners), Upstreams()
    http = HttpExecutor(upstreams, default=upstream, memory=memory)
    approvals = Approvals(runtime.url, Governor(operations, server.limits, server.operation_window))
    executor = OperationExecutor(
        operations,
        routed.upstreams,
        http,
        RoutingExecutor(routed.upstreams, http),
        {APPROVALS: approvals},
    )
    worker = Worker(
        runtime.url,
        executor,
        runtime.objects,
        settings,
        scope,
        WorkerOptions(
            producers=scopes,
            discovered=discovered,
            upstreams=upstreams,
            memory=memory,
            listen_url=listen,
        ),
    )
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, worker.stop)
    if until_eof:
        loop.add_reader(sys.stdin, _parent_left, worker)
    _log.info("worker started", pid=os.getpid(), concurrency=settings.concurrency)
    try:
        async with runtime.kept_running(), exit_guard(worker):
            await worker.run()
    finally:
        await executor.close()
        await approvals.close()
    return worker.claimed


def scopes_for_producers(
    server: ServerSettings,
    operations: Registry,
    settings: WorkerSettings,
    scope: Scope,
    default: str | None = None,
) -> tuple[list[ProducerScope], ProducerScope]:
    """One producer for each configured upstream, so that a slow one delays no other, and one for all other
    models, which go to the `default` upstream or to that for any model. Also the scope in which each upstream
    that a batch names gets a producer, while it has work."""
    named = [(_named(upstream, operations), upstream) for upstream in server.upstreams]
    scopes = [
        ProducerScope(Scope(keys=keys), upstream.concurrency, upstream.base_url)
        for keys, upstream in named
        if keys
    ]
    served = tuple(key for keys, _ in named for key in keys)
    default = default or next((up.base_url for up in server.upstreams if ANY_MODEL in up.models), None)
    models = replace(scope, excluded=served, excluded_prefixes=(*scope.excluded_prefixes, *urls.SCHEMES))
    discovered = ProducerScope(Scope(excluded=served, below=urls.SCHEMES), settings.concurrency)
    return [*scopes, ProducerScope(models, settings.concurrency, default)], discovered


def _named(upstream: UpstreamSettings, operations: Registry) -> tuple[str, ...]:
    """The models and the operations that are this upstream's by name, and batches that name its URL. Without
    the former there is none: the upstream for any model has no producer of its own."""
    models = [model for model in upstream.models if model != ANY_MODEL]
    keys = (*models, *(url_of(each.name) for each in operations.all() if each.upstream == upstream.name))
    return (*keys, upstream.base_url) if keys else ()


def _concurrency(server: ServerSettings) -> int:
    """What the upstream for any model allows."""
    caps = [upstream.concurrency for upstream in server.upstreams if ANY_MODEL in upstream.models]
    return caps[0] if caps else WorkerSettings().concurrency


def _parent_left(worker: Worker) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin)
    _log.warning("the server is gone; what is in flight is finished")
    worker.stop()

"""`batchline serve`: the API, and by default a worker in a separate process."""

import asyncio
import ipaddress
import os
import shlex
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import structlog
import typer

from batchline.api.context import ApiContext
from batchline.api.database_disk import DatabaseDisk
from batchline.api.server import Server, listen
from batchline.api.serving import app_server
from batchline.cli import options
from batchline.cli.app_worker import check_location, served_app
from batchline.cli.display.console import CommandError, out
from batchline.cli.errors import reported_errors
from batchline.cli.log_options import choice
from batchline.cli.runtime import Runtime, folder_of, open_runtime, run_async
from batchline.cli.server_settings import (
    check_hook_file,
    check_keys,
    hooks_in,
    read_settings,
    registry,
    with_upstream,
)
from batchline.cli.stage_worker import check_stages
from batchline.cli.tracing import checked, traced
from batchline.cli.worker_process import WorkerProcess
from batchline.config.definitions import settings_of
from batchline.config.settings import ServerSettings, Settings, TraceSettings, WorkerSettings
from batchline.governance import keys
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.store.pool import Sessions
from batchline.traces.tracing import Tracing

_log = structlog.get_logger("batchline.serve")


def register(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel=options.PANEL_RUN)(serve)


def serve(
    context: typer.Context,
    host: options.Host = None,
    port: options.Port = None,
    config: options.Config = None,
    upstream: options.Upstream = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP",
            help="Also serve the governed operations of this Python app. The worker runs them.",
            show_default=False,
        ),
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Run no worker; other workers use this database.")
    ] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Require no keys. Only on a loopback address.")
    ] = False,
    on_end: options.OnEnd = None,
    on_end_command: options.OnEndCommand = None,
    on_end_timeout: options.OnEndTimeout = None,
    on_end_env: options.OnEndEnv = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
) -> None:
    """Serve OpenAI's Batch API for your own models.

    The first start creates an admin key and prints it once. Ctrl-C finishes the requests in flight of the
    server and the worker; a second one stops both at once.
    """
    with reported_errors(as_json=False):
        settings = read_settings(context.params)
        server = with_upstream(settings.server, upstream)
        loopback = _is_loopback(server.host)
        if no_auth and not loopback:
            raise CommandError(
                f"--no-auth: without keys the server listens on loopback only, not on {server.host}"
            )
        if no_worker and (on_end or on_end_command):
            raise CommandError("--on-end: hooks run in workers; give it to `batchline worker`")
        if not no_worker:
            check_keys(server)
            check_stages(server)
            check_hook_file(settings)
            hooks_in(settings.worker)
        traces = checked(settings, settings.config)
        # A mistake in an operation ends the command before anything is started.
        governed: Sequence[Operation] = ()
        if app is not None:
            served = served_app(app)
            check_location(served.location, settings)
            governed = served.governed
        operations = registry(server, governed)
        server = replace(
            server,
            authentication=not no_auth,
            public_openapi=loopback if server.public_openapi is None else server.public_openapi,
        )
        with (
            open_runtime(database, data_dir, objects=server.objects, to_work=True) as runtime,
            _listening(server.host, server.port) as sock,
        ):
            log = choice(context).arguments()
            command = (*log, "worker", *((app, "--with-upstreams") if app else ()), "--until-eof")
            worker = None if no_worker else WorkerProcess(_environment(settings), command)
            run_async(_serve(runtime, server, operations, sock, worker, traces))


async def _serve(
    runtime: Runtime,
    settings: ServerSettings,
    operations: Registry,
    sock: socket.socket,
    worker: WorkerProcess | None,
    traces: TraceSettings,
) -> None:
    async with traced(traces) as tracing:
        await _serve_traced(runtime, settings, operations, sock, worker, tracing)


async def _serve_traced(
    runtime: Runtime,
    settings: ServerSettings,
    operations: Registry,
    sock: socket.socket,
    worker: WorkerProcess | None,
    tracing: Tracing | None,
) -> None:
    sessions = Sessions(runtime.url, maximum=settings.sessions, streams=settings.streams)
    disk = DatabaseDisk(None if runtime.server is None else runtime.server.data_dir)
    tracer = None if tracing is None else tracing.batches
    context = ApiContext(sessions, runtime.objects, runtime.url, settings, disk, tracer=tracer)
    server = app_server(context, sock, operations)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, server, worker)
    try:
        await _announce(sessions, settings, sock)
        async with runtime.kept_running(), asyncio.TaskGroup() as services:
            services.create_task(_answer(server, worker))
            if worker is not None:
                services.create_task(worker.run())
    finally:
        await sessions.close()


async def _answer(server: Server, worker: WorkerProcess | None) -> None:
    await server.run_until_stopped()
    # Also if the server could not start.
    if worker is not None and not worker.stopping:
        worker.stop()


def _stop(server: Server, worker: WorkerProcess | None) -> None:
    server.stop()
    if worker is not None:
        worker.stop()


async def _announce(sessions: Sessions, settings: ServerSettings, sock: socket.socket) -> None:
    """Print the address of the server and, the first time, an admin key."""
    if settings.authentication:
        async with sessions.one() as session:
            first = await keys.create_first(session)
        if first is not None:
            out().print(f"admin key, shown this once: {first[1]}", markup=False)
    if not settings.upstreams:
        _log.warning("no upstream: every batch will fail with model_not_found; give --upstream or --config")
    host, port, *_ = sock.getsockname()
    displayed = f"[{host}]" if ":" in host else host
    out().print(f"dashboard: http://{displayed}:{port}", markup=False)
    out().print(f"listening on http://{displayed}:{port}/v1", markup=False)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot listen on {host}, port {port}: {reason}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _environment(settings: Settings) -> Mapping[str, str]:
    """The worker's environment, with this command's flags: everybody can read a command line."""
    located = replace(settings, data_dir=folder_of(settings.data_dir))
    flags = {each.variable_name(): getattr(located, key) for key, each in settings_of(Settings).items()}
    objects = {settings_of(ServerSettings)["objects"].variable_name("server"): settings.server.objects}
    given = {name: str(value) for name, value in (flags | objects).items() if value is not None}
    return {**os.environ, **given, **_hook_variables(settings.worker)}


def _hook_variables(settings: WorkerSettings) -> Mapping[str, str]:
    texts = {
        "on_end": ",".join(settings.on_end),
        "on_end_command": shlex.join(settings.on_end_command),
        "on_end_timeout": str(settings.on_end_timeout),
        "on_end_env": ",".join(settings.on_end_env),
    }
    known = settings_of(WorkerSettings)
    return {known[key].variable_name("worker"): text for key, text in texts.items() if text}

"""`batchline serve`: the API, and by default a worker in a process of its own."""

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import structlog
import typer

from batchline.api.app import create_app
from batchline.api.context import Context
from batchline.api.server import Server, listen
from batchline.cli import options
from batchline.cli.display.console import CommandError, out
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import Runtime, folder_of, open_runtime, run_async
from batchline.cli.server_settings import check_keys, find_config, registry, server_settings, with_upstream
from batchline.cli.worker_process import WorkerProcess
from batchline.config.settings import ServerSettings
from batchline.governance import keys
from batchline.store.pool import Sessions

_log = structlog.get_logger("batchline.serve")


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8080,
    config: options.Config = None,
    upstream: options.Upstream = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Run no worker: others work on this database.")
    ] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no keys. On this machine's own address only.")
    ] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
) -> None:
    """Serve OpenAI's Batch API on your own models.

    The first start makes an admin key and prints it once. Ctrl-C finishes what is under way, here and at the
    worker; a second one leaves at once.
    """
    with reported_errors(as_json=False):
        if no_auth and not _is_loopback(host):
            raise CommandError(f"without keys the server listens on loopback only, not on {host}")
        found = find_config(config)
        settings = with_upstream(server_settings(found, objects), upstream)
        if not no_worker:
            check_keys(settings)
        # What is wrong with an operation is said before anything is started.
        registry(settings)
        settings = replace(settings, authentication=not no_auth)
        if settings.public_openapi is None:
            settings = replace(settings, public_openapi=_is_loopback(host))
        with (
            open_runtime(database, data_dir, objects=settings.objects, to_work=True) as runtime,
            _listening(host, port) as sock,
        ):
            environment = _environment(database, data_dir, found, upstream, objects)
            verbose = bool(context.find_root().params.get("verbose"))
            worker = None if no_worker else WorkerProcess(environment, verbose=verbose)
            run_async(_serve(runtime, settings, sock, worker))


async def _serve(
    runtime: Runtime, settings: ServerSettings, sock: socket.socket, worker: WorkerProcess | None
) -> None:
    sessions = Sessions(runtime.url, maximum=settings.sessions, streams=settings.streams)
    server = Server(create_app(Context(sessions, runtime.objects, runtime.url, settings)), sock)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, server, worker)
    try:
        await _greet(sessions, settings, sock)
        async with runtime.kept_running(), asyncio.TaskGroup() as services:
            services.create_task(_answer(server, worker))
            if worker is not None:
                services.create_task(worker.run())
    finally:
        await sessions.close()


async def _answer(server: Server, worker: WorkerProcess | None) -> None:
    await server.run_until_stopped()
    # Also where it could not even start.
    if worker is not None and not worker.stopping:
        worker.stop()


def _stop(server: Server, worker: WorkerProcess | None) -> None:
    server.stop()
    if worker is not None:
        worker.stop()


async def _greet(sessions: Sessions, settings: ServerSettings, sock: socket.socket) -> None:
    """Where to find the server, and, the first time, the key to it."""
    if settings.authentication:
        async with sessions.one() as session:
            first = await keys.create_first(session)
        if first is not None:
            out().print(f"admin key, shown this once: {first[1]}", markup=False)
    if not settings.upstreams:
        _log.warning("no upstream is configured: every batch will fail with model_not_found")
    host, port, *_ = sock.getsockname()
    displayed = f"[{host}]" if ":" in host else host
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


def _environment(
    database: str | None,
    data_dir: Path | None,
    config: Path | None,
    upstream: str | None,
    objects: str | None,
) -> Mapping[str, str]:
    """What the worker is told, not on its command line, which everybody on the machine can read."""
    reported = {
        "BATCHLINE_DATABASE_URL": database,
        "BATCHLINE_DATA_DIR": str(folder_of(data_dir)),
        "BATCHLINE_CONFIG": None if config is None else str(config),
        "BATCHLINE_UPSTREAM": upstream,
        "BATCHLINE_OBJECTS": objects,
    }
    kept = {name: value for name, value in os.environ.items() if name not in reported}
    return kept | {name: value for name, value in reported.items() if value is not None}

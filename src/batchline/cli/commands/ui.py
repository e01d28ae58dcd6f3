"""`batchline ui`: the dashboard of a local data folder, for the browser of this user."""

import asyncio
import signal
import socket
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from batchline.api.browser import LocalSignIn
from batchline.api.context import ApiContext
from batchline.api.database_disk import DatabaseDisk
from batchline.api.server import listen
from batchline.api.serving import app_server
from batchline.cli import options
from batchline.cli.app_worker import check_location, served_app
from batchline.cli.display.console import CommandError, out
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import App
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings, registry, with_upstream
from batchline.config.settings import ServerSettings
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.model import DEFAULT_TENANT
from batchline.store.pool import Sessions

_HOST = "127.0.0.1"


def register(app: typer.Typer) -> None:
    app.command("ui", rich_help_panel=options.PANEL_RUN)(ui)


def ui(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free port.", max=65_535)] = 0,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose batches to show; commands use `default`.")
    ] = DEFAULT_TENANT,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
    config: options.Config = None,
    app: App = None,
    upstream: options.Upstream = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
) -> None:
    """Show the dashboard of a data folder in your browser.

    It listens on this machine only. The address has a token that signs one browser in, once. It runs no
    batches: `run`, `worker` and `serve` do. Ctrl-C ends it.
    """
    with reported_errors(as_json=False):
        settings = read_settings({key: value for key, value in context.params.items() if key != "port"})
        server = with_upstream(settings.server, upstream)
        governed: Sequence[Operation] = ()
        if app is not None:
            displayed = served_app(app)
            check_location(displayed.location, settings)
            governed = displayed.governed
        operations = registry(server, governed)
        server = replace(server, host=_HOST, authentication=False, public_openapi=False)
        with (
            open_runtime(database, data_dir, objects=server.objects) as runtime,
            _listening(port) as sock,
        ):
            run_async(_show(runtime, server, operations, sock, tenant, open_browser=not no_browser))


async def _show(
    runtime: Runtime,
    settings: ServerSettings,
    operations: Registry,
    sock: socket.socket,
    tenant: str,
    *,
    open_browser: bool,
) -> None:
    sessions = Sessions(runtime.url, maximum=settings.sessions, streams=settings.streams)
    disk = DatabaseDisk(None if runtime.server is None else runtime.server.data_dir)
    local = LocalSignIn(sock.getsockname()[1])
    context = ApiContext(sessions, runtime.objects, runtime.url, settings, disk, local=local, tenant=tenant)
    server = app_server(context, sock, operations)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, server.stop)
    address = f"http://{_HOST}:{local.port}/signin?token={local.token}"
    out().print(f"open {address}", markup=False, soft_wrap=True)
    out().print("Ctrl-C ends it.")
    try:
        async with runtime.kept_running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.run_until_stopped())
            if open_browser:
                # It may start a program and wait for it.
                tasks.create_task(asyncio.to_thread(webbrowser.open, address))
    finally:
        await sessions.close()


def _listening(port: int) -> socket.socket:
    try:
        return listen(_HOST, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot listen on {_HOST}, port {port}: {reason}") from error

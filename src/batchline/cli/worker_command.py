"""`batchline worker`: works on whatever batches there are, until told to stop."""

import asyncio
import os
import signal
from typing import Annotated

import structlog
import typer

from batchline.cli import options
from batchline.cli.console import out, print_json
from batchline.cli.failing import failing
from batchline.cli.place import Place, open_place, run_async
from batchline.config import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.store.spans import Scope
from batchline.worker.worker import Worker

_log = structlog.get_logger("batchline.worker")


def register(app: typer.Typer) -> None:
    app.command("worker")(work)


def work(
    upstream: options.Upstream = None,
    concurrency: options.Concurrency = 64,
    drain: Annotated[bool, typer.Option("--drain", help="Leave when there is nothing left to do.")] = False,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0.1, metavar="S", help="Leave after this long.")
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", min=1.0, metavar="S", help="What a crash costs at most.")
    ] = 15.0,
    allow_private_webhooks: Annotated[
        bool,
        typer.Option(
            "--allow-private-webhooks",
            envvar="BATCHLINE_ALLOW_PRIVATE_WEBHOOKS",
            help="Send to webhooks on this machine and in private networks too.",
        ),
    ] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Work on batches that others have submitted.

    Ctrl-C waits for what is in flight; a second one leaves at once, and what was in flight is sent again
    by whoever comes next, under the same idempotency keys.
    """
    with failing(as_json), open_place(database, data_dir) as place:
        settings = WorkerSettings(
            concurrency=concurrency,
            lease=lease,
            drain=drain,
            max_seconds=max_seconds,
            allow_private_webhooks=allow_private_webhooks,
        )
        claimed = run_async(_work(place, settings, upstream))
        if as_json:
            print_json({"claimed": claimed})
        else:
            out().print(f"worked on {claimed:,} items")


async def _work(place: Place, settings: WorkerSettings, upstream: str | None) -> int:
    executor = HttpExecutor(upstream=upstream)
    worker = Worker(place.url, executor, place.objects, settings, Scope())
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, worker.stop)
    _log.info("worker started", pid=os.getpid(), concurrency=settings.concurrency)
    try:
        async with place.kept_running():
            await worker.run()
    finally:
        await executor.close()
    return worker.claimer.claimed

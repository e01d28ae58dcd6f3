"""Ends a process whose worker should have ended and has not.

A worker that must leave at once, or that has failed, waits for nothing. If it is still there seconds later,
something in it ignores its cancellation. To end the process then is safe: `kill -9` does the same, and others
take over when the lease ends.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batchline.cli.options import Exit
from batchline.worker.worker import Worker

_PATIENCE = 15.0


@asynccontextmanager
async def exit_guard(worker: Worker, patience: float = _PATIENCE) -> AsyncIterator[None]:
    """While this lasts, a worker that aborts has `patience` seconds to end."""
    watching = asyncio.create_task(_watch(worker, patience))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(worker: Worker, patience: float) -> None:
    await worker.aborting.wait()
    # A thread, because the event loop itself may be what is stuck.
    timer = threading.Timer(patience, _leave)
    timer.daemon = True
    timer.start()
    try:
        await asyncio.Event().wait()
    finally:
        timer.cancel()


def _leave() -> None:
    message = "error: the worker did not stop and is ended; what it held is free when its lease ends"
    print(message, file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(Exit.SOME_FAILED)

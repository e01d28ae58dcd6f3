"""Ends a process whose worker does not stop.

A worker that aborts waits for nothing. If it still runs seconds later, something in it ignores its
cancellation. Then it is safe to end the process: `kill -9` does the same, and others take over when the lease
expires.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batchline.worker.worker import Worker

_PATIENCE = 15.0
# That of a command that has failed in part.
_EXIT_CODE = 1


@asynccontextmanager
async def exit_guard(worker: Worker, patience: float = _PATIENCE) -> AsyncIterator[None]:
    """End the process if the worker aborts and does not stop within `patience` seconds."""
    watching = asyncio.create_task(_watch(worker, patience))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(worker: Worker, patience: float) -> None:
    await worker.aborting.wait()
    # A thread, because the event loop itself may be stuck.
    timer = threading.Timer(patience, _leave)
    timer.daemon = True
    timer.start()
    try:
        await asyncio.Event().wait()
    finally:
        timer.cancel()


def _leave() -> None:
    message = "error: the worker did not stop and was killed; other workers take over when its lease expires"
    print(message, file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(_EXIT_CODE)

"""The app of the benchmarks on one database, in this process."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from psycopg import sql

from batchline import SubmittedBatch
from benchmarks.python_app import app, burn, first, nothing
from benchmarks.server import execute

_RUNNING = sql.SQL("SELECT 1 FROM batchline.batches WHERE finalizing_at IS NULL AND ended_at IS NULL LIMIT 1")
_POLL = 0.01


@asynccontextmanager
async def app_at(url: str, folder: Path) -> AsyncIterator[None]:
    """`benchmarks.python_app.app` submits to this database meanwhile."""
    os.environ["BATCHLINE_DATABASE_URL"] = url
    os.environ["BATCHLINE_DATA_DIR"] = str(folder)
    try:
        async with app:
            yield
    finally:
        del os.environ["BATCHLINE_DATABASE_URL"], os.environ["BATCHLINE_DATA_DIR"]


async def until_run(url: str) -> None:
    """Until all items of all batches have ended. Their output files may still be written."""

    def wait() -> None:
        while execute(url, _RUNNING):
            time.sleep(_POLL)

    await asyncio.to_thread(wait)


async def warm_up() -> None:
    """Wait until workers have run items of all operations."""
    batches: list[SubmittedBatch[Any, Any]] = [
        await app.submit(burn, range(100)),
        await app.submit(nothing, [{"nth": 0, "text": ""}]),
        await app.submit(first, [{"nth": 0, "text": ""}]),
    ]
    for batch in batches:
        await batch.wait(here=False)

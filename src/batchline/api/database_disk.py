"""Whether the disk of the database is full.

A database with a full disk can still be read, so a query does not show it. An embedded database's disk is
measured. For any other, a request that met a full disk is remembered for a while.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from batchline.host.disk import has_no_room

# Seconds. A server that reports "not ready" may get no requests, and so must try again some time.
_REMEMBERED = 60.0


class DatabaseDisk:
    """`folder` is that of an embedded database."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._full_at: float | None = None

    def refused(self) -> None:
        """A request could not be stored, because the disk is full."""
        self._full_at = self._clock()

    async def is_full(self) -> bool:
        if self._folder is not None:
            return await asyncio.to_thread(has_no_room, self._folder)
        return self._full_at is not None and self._clock() - self._full_at < _REMEMBERED

"""Download slots: a server has a limited number, and each tenant a share. Content is sent in small blocks.

A download with a slow reader holds a slot and a few blocks of memory, and nothing in the database. A line
that is too large for a block waits for its reader in a temporary file, not in memory.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Depends, Request

from batchline.api.errors import ApiError
from batchline.api.limits import BLOCK
from batchline.store.pages import Pages
from batchline.store.pool import Sessions

_MAX_DOWNLOADS = 256
# So slow readers of one tenant do not block other tenants.
_MAX_PER_TENANT = 32
# Lines larger than a page that may be in memory at once, on their way to a temporary file.
_MAX_LARGE_LINES = 2
# Seconds that a download waits for a slot.
_PATIENCE = 10.0
_RETRY_AFTER = {"retry-after": "5"}


class Downloads:
    """The download slots of one server."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        maximum: int = _MAX_DOWNLOADS,
        max_per_tenant: int = _MAX_PER_TENANT,
        patience: float = _PATIENCE,
    ) -> None:
        self._sessions = sessions
        self._slots = asyncio.Semaphore(maximum)
        self._max_per_tenant = max_per_tenant
        self._patience = patience
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._large = asyncio.Semaphore(_MAX_LARGE_LINES)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot. Raises a 503 if none becomes free in time."""
        share = self._shares.get(tenant)
        if share is None:
            self._shares[tenant] = share = asyncio.Semaphore(self._max_per_tenant)
        async with (
            _taken(share, self._patience, "Too many downloads of your tenant are running."),
            _taken(self._slots, self._patience, "Too many downloads are running."),
        ):
            yield

    async def blocks(self, pages: Pages) -> AsyncGenerator[bytes]:
        """The lines of all pages. No database connection is held between two pages."""
        while True:
            async with self._sessions.stream() as session:
                page = await pages.read(session)
            if page is None:
                return
            if not page.large:
                yield page.lines
                continue
            with TemporaryFile(prefix="batchline-") as spooled:
                async with self._large, self._sessions.stream() as session:
                    await asyncio.to_thread(spooled.write, await pages.read_large(session))
                await asyncio.to_thread(spooled.seek, 0)
                while block := await asyncio.to_thread(spooled.read, BLOCK):
                    yield block


@asynccontextmanager
async def _taken(slots: asyncio.Semaphore, patience: float, refusal: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(patience):
            await slots.acquire()
    except TimeoutError:
        message = f"{refusal} Try again when one of them has ended."
        raise ApiError(
            503, message, code="too_many_downloads", type="server_error", headers=_RETRY_AFTER
        ) from None
    try:
        yield
    finally:
        slots.release()


def _downloads(request: Request) -> Downloads:
    downloads: Downloads = request.app.state.downloads
    return downloads


InDownloads = Annotated[Downloads, Depends(_downloads)]

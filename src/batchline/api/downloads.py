"""How routes give out content: a bounded number at once, of which each tenant has a share, in small blocks.

A download whose reader is slow holds a place and a few blocks of memory, and nothing in the database. A line
that is too large for a block waits for its reader in a file, not in memory.
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

_AT_ONCE = 256
# So that no tenant's slow readers keep the others out.
_AT_ONCE_OF_A_TENANT = 32
# Lines that are too large for a page and that are in memory at once, on their way to a file.
_LARGE_AT_ONCE = 2
# How long a download waits for a place, and when to ask again if it got none.
_PATIENCE = 10.0
_ASK_AGAIN = {"retry-after": "5"}


class Downloads:
    """The places for downloads of one server."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        at_once: int = _AT_ONCE,
        at_once_of_a_tenant: int = _AT_ONCE_OF_A_TENANT,
        patience: float = _PATIENCE,
    ) -> None:
        self._sessions = sessions
        self._places = asyncio.Semaphore(at_once)
        self._of_a_tenant = at_once_of_a_tenant
        self._patience = patience
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """One of the places, of which each tenant has a share at most. Raises a 503 if none gets free."""
        share = self._shares.get(tenant)
        if share is None:
            self._shares[tenant] = share = asyncio.Semaphore(self._of_a_tenant)
        async with (
            _taken(share, self._patience, "Too many downloads of your tenant are under way."),
            _taken(self._places, self._patience, "Too many downloads are under way."),
        ):
            yield

    async def blocks(self, pages: Pages) -> AsyncGenerator[bytes]:
        """The lines of all pages. Between two of them no connection to the database is held."""
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
async def _taken(positions: asyncio.Semaphore, patience: float, refusal: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(patience):
            await positions.acquire()
    except TimeoutError:
        message = f"{refusal} Try again when one of them has ended."
        raise ApiError(
            503, message, code="too_many_downloads", type="server_error", headers=_ASK_AGAIN
        ) from None
    try:
        yield
    finally:
        positions.release()


def _downloads(request: Request) -> Downloads:
    downloads: Downloads = request.app.state.downloads
    return downloads


InDownloads = Annotated[Downloads, Depends(_downloads)]

"""A pool with a bounded number of sessions, shared by HTTP requests.

A request holds a session only while its statements run, never while its client reads. Pages of downloads use
a separate pool, so that many downloads do not delay other requests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from batchline.store.session import Session, StoreUnavailable

_PATIENCE = 10.0


class Sessions:
    """Sessions with one database, opened on first use and then reused."""

    def __init__(
        self, url: str, *, maximum: int = 16, streams: int = 16, patience: float = _PATIENCE
    ) -> None:
        self._short = _BoundedPool(url, "api", maximum, patience)
        self._streams = _BoundedPool(url, "stream", streams, patience)

    def usage(self) -> "list[PoolUsage]":
        return [self._short.usage(), self._streams.usage()]

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Session]:
        """A session for a few short statements."""
        async with self._short.one() as session:
            yield session

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Session]:
        """A session for one page of a download."""
        async with self._streams.one() as session:
            yield session

    async def close(self) -> None:
        await self._short.close()
        await self._streams.close()


@dataclass(frozen=True, slots=True)
class PoolUsage:
    name: str
    size: int
    in_use: int
    # Requests that wait for a session, and those that got none in time.
    waiting: int
    refused: int


class _BoundedPool:
    def __init__(self, url: str, name: str, maximum: int, patience: float) -> None:
        self._url = url
        self._name = name
        self._maximum = maximum
        self._patience = patience
        self._slots = asyncio.Semaphore(maximum)
        self._in_use = 0
        self._waiting = 0
        self._refused = 0
        # Last in, first out: in quiet times only a few connections are used.
        self._idle: list[Session] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Session]:
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._slots.acquire()
        except TimeoutError as error:
            self._refused += 1
            raise StoreUnavailable(f"all {self._maximum} connections are busy") from error
        finally:
            self._waiting -= 1
        self._in_use += 1
        session = self._idle.pop() if self._idle else Session(self._url, self._name)
        try:
            yield session
        finally:
            self._in_use -= 1
            self._idle.append(session)
            self._slots.release()

    def usage(self) -> PoolUsage:
        return PoolUsage(self._name, self._maximum, self._in_use, self._waiting, self._refused)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

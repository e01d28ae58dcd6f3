"""Per-host politeness: at most so many requests in flight, and a pause between two starts."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class _Host:
    slots: asyncio.Semaphore
    # When the next request may start, by the clock of the event loop.
    next_start: float = 0.0


@dataclass(slots=True)
class Politeness:
    """Counts within one worker. With n workers, a host sees up to n times as much."""

    in_flight: int
    delay: float
    _hosts: dict[str, _Host] = field(init=False)

    def __post_init__(self) -> None:
        self._hosts = defaultdict(lambda: _Host(asyncio.Semaphore(self.in_flight)))

    @asynccontextmanager
    async def request_to(self, url: str) -> AsyncIterator[None]:
        """Wait until a request may start. The block is the request."""
        host = self._hosts[urlsplit(url).netloc]
        async with host.slots:
            now = asyncio.get_running_loop().time()
            start = max(now, host.next_start)
            # Taken before the wait, so that the next one waits longer.
            host.next_start = start + self.delay
            await asyncio.sleep(start - now)
            yield

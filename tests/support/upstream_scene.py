"""An upstream without requests, whose clock a test moves and whose probes it answers."""

import asyncio

from msgspec.structs import replace

from batchline.model import Item
from batchline.upstreams.crashes import Fate, Reach
from batchline.upstreams.retry import Backoff
from batchline.upstreams.timing import Timing
from batchline.upstreams.upstream import Upstream
from tests.support.http_executor import an_item


class Hand:
    """A clock that a test moves. Timers go off when it has moved far enough."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, asyncio.Timeout]] = []

    def timer(self, seconds: float) -> asyncio.Timeout:
        timer = asyncio.timeout(None)
        self._timers.append((self.now + seconds, timer))
        return timer

    async def move(self, seconds: float) -> None:
        await settled()
        self.now += seconds
        for due, timer in self._timers:
            if due <= self.now:
                timer.reschedule(asyncio.get_running_loop().time())
        self._timers = [each for each in self._timers if each[0] > self.now]
        await settled()


async def settled() -> None:
    """All that can go on without time passing has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Reached(Upstream):
    """Answers a probe as told."""

    reach = Reach.PRESENT
    probes = 0

    async def probe(self) -> Reach:
        self.probes += 1
        return self.reach


class Scene:
    def __init__(self) -> None:
        self.hand = Hand()
        self.stopping = asyncio.Event()
        timing = Timing(clock=lambda: self.hand.now, random=lambda: 1.0, timer=self.hand.timer)
        self.upstream = Reached("handlers", 4, self.stopping, timing, Backoff(1.0, 8.0))
        self.changes: list[bool] = []
        self.upstream.watch(lambda: self.changes.append(self.upstream.available))

    def line(self, number: int = 1, crashes: int = 0) -> Item:
        item = an_item(None, line_no=number)
        return replace(item, claim=replace(item.claim, crashes=crashes))

    def sends(self, item: Item) -> asyncio.Task[bool]:
        async def sent() -> bool:
            allowed = await self.upstream.may_send(lambda: "me", item)
            if allowed:
                self.upstream.begin(item)
            return allowed

        return asyncio.create_task(sent())

    async def fails(self, item: Item, status: int | None = 503, after: float = 0.3) -> Fate:
        started = self.upstream.begin(item)
        self.hand.now += after
        try:
            return await self.upstream.fate(item, started, status)
        finally:
            self.upstream.end(item)

    async def opens(self) -> None:
        for number in range(1, 12):
            if self.upstream.available:
                await self.fails(self.line(number))
        assert not self.upstream.available

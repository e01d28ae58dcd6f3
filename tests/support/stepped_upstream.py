"""A simulated upstream with real sockets, whose time passes when a test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from batchline.simulate import SimulateSettings, Simulator
from batchline.simulate.routes import Routes
from batchline.simulate.tasks import SimulatedTasks
from batchline.simulate.upstream import SimulatedUpstream
from tests.support.simulated_client import Answer, Client, Upstream, chat, request
from tests.support.stepped_timers import SteppedTimers


@dataclass
class SteppedUpstream:
    """A simulator whose latencies pass when a test says so."""

    http: Upstream
    timers: SteppedTimers
    received: int = 0

    async def send(self, text: str = "hi", key: str | None = None, **fields: Any) -> Client:
        """Send a request and wait until it was received."""
        client = await self.http.connect()
        client.send(request(chat(text, **fields), key=key))
        self.received += 1
        await self.http.until_received(self.received)
        return client

    async def answer(self, text: str = "hi", seconds: float = 0.0, **fields: Any) -> Answer:
        """The answer to a request after so many seconds."""
        client = await self.send(text, **fields)
        self.timers.advance(seconds)
        return await client.answer()


@asynccontextmanager
async def simulating(**settings: Any) -> AsyncIterator[SteppedUpstream]:
    timers, chosen = SteppedTimers(), SimulateSettings(**settings)
    upstream = SimulatedUpstream(chosen, cast(Any, timers), timers.now)
    simulator = Simulator(chosen, lambda loop: Routes(chosen, upstream, SimulatedTasks(chosen, loop)).handle)
    http = Upstream(*await simulator.start())
    try:
        yield SteppedUpstream(http, timers)
    finally:
        await http.close_clients()
        await simulator.stop()

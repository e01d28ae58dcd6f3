"""Which upstream an item goes to: the one that serves its model, by the operator's settings alone.

A batch may name an upstream of its own, as `batchline run` does; its items pass through untouched. All others
are routed by their model, get that upstream's key, timeout and attempts, and wait at its gate while it has as
many requests in flight as it may. Nothing in a line but its model has a say in this.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from batchline.config import ANY_MODEL, UpstreamSettings
from batchline.executors.executor import Executor, Fence, no_fence
from batchline.model import Deferred, Item, RunSettings, Verdict


class Gate:
    """Lets so many through at once, the others in turn; when closed, nobody."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._closed = False
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def enter(self) -> bool:
        """True: go on, and `leave` afterwards. False: it is closed."""
        if self._closed:
            return False
        if self._free and not self._waiting:
            self._free -= 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            # The turn may have come at the same moment; then it is the next one's.
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1

    def close(self) -> None:
        """Those who wait are sent away; those who are through may finish."""
        self._closed = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(False)


class _Route:
    def __init__(self, upstream: UpstreamSettings) -> None:
        self.gate = Gate(upstream.concurrency)
        self.settings = RunSettings(
            upstream=upstream.base_url,
            api_key_env=upstream.api_key_env,
            max_attempts=upstream.max_attempts,
            timeout=upstream.timeout,
        )


class RoutingExecutor:
    """Sends items to their upstreams through one executor that knows how to."""

    def __init__(self, upstreams: Sequence[UpstreamSettings], executor: Executor) -> None:
        self._executor = executor
        routes = [(upstream.models, _Route(upstream)) for upstream in upstreams]
        self._routes = {model: route for models, route in routes for model in models}
        self._gates = [route.gate for _, route in routes]
        self._fence: Fence = no_fence

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        self._executor.fenced_by(fence)

    async def run(self, item: Item) -> Verdict:
        if item.claim.settings.upstream is not None:
            return await self._executor.run(item)
        route = self._routes.get(item.claim.model) or self._routes.get(ANY_MODEL)
        if route is None:
            # Not ours to run; the executor may know a default, or gives it back for another worker.
            return await self._executor.run(item)
        sender = self._fence()
        if not await route.gate.enter():
            return Deferred(item)
        try:
            if sender is None or self._fence() != sender:
                return Deferred(item)
            return await self._executor.run(replace(item, claim=replace(item.claim, settings=route.settings)))
        finally:
            route.gate.leave()

    def wind_down(self) -> None:
        for gate in self._gates:
            gate.close()
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

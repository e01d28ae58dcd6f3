"""A limit of items in flight for all operations of a worker together."""

import asyncio

from batchline.executors.executor import Executor, Fence, no_fence
from batchline.model import Deferred, Item, Ran


class LimitedExecutor(Executor):
    """Runs at most `maximum` items at once. Others wait; if the worker stops, they are given back."""

    def __init__(self, executor: Executor, maximum: int) -> None:
        self._executor = executor
        self._slots = asyncio.Semaphore(maximum)
        self._fence: Fence = no_fence
        self._winding_down = False

    async def run(self, item: Item) -> Ran:
        held = self._fence()
        async with self._slots:
            # While it waited, the lease may have been lost: then another worker may be running it.
            if self._winding_down or held is None or self._fence() != held:
                return Deferred(item)
            return await self._executor.run(item)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._winding_down = True
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

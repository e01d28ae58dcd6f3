"""Slots for calls of one operation in threads or processes.

The worker claims no more items than there are slots. But a thread cannot be ended: after a time limit it
keeps its slot until it returns. Items that find no slot for a while go back, so that another worker may run
them.
"""

import asyncio
from collections import deque

from batchline.executors.executor import Fence, no_fence

# How long an item waits for a slot, and how long it stays away afterwards.
PATIENCE = 1.0


class CallSlots:
    def __init__(self, count: int, patience: float = PATIENCE) -> None:
        self.free = count
        self._patience = patience
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._stopping = False
        self.fence: Fence = no_fence

    async def enter(self) -> bool:
        """Take a slot. False: give the item back."""
        if self.free > 0:
            self.free -= 1
            return True
        if self._stopping:
            return False
        name = self.fence()
        if not await self._wait():
            return False
        if name is None or self.fence() != name:
            # The lease was lost meanwhile, so another worker may be running the item.
            self.leave()
            return False
        return True

    def leave(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self.free += 1

    def wind_down(self) -> None:
        """Nobody waits any more."""
        self._stopping = True
        for waiter in self._waiters:
            _end(waiter)

    async def _wait(self) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_later(self._patience, _end, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.leave()
            raise
        finally:
            timer.cancel()


def _end(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)

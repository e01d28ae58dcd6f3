"""Claimed items that wait to be sent, and how many more are wanted.

The buffer holds about two seconds of work at the measured rate, so that a slow upstream never lets one
worker hoard (LESSONS 19), and a fast one never waits for a claim.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from batchline.config import WorkerSettings
from batchline.model import Item
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots

_MOST_BYTES = 64 * 2**20


class Buffer:
    def __init__(self, settings: WorkerSettings, rate: Rate, slots: Slots) -> None:
        self._settings = settings
        self._rate = rate
        self._slots = slots
        self._items: deque[Item] = deque()
        # Each is told whether an item may be here; False: it is not needed any more.
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._hungry = asyncio.Event()
        self._hungry.set()
        self._low = 0
        self._average_size = 0.0
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> int:
        """How many takers wait."""
        return len(self._waiters)

    def put(self, items: Iterable[Item]) -> None:
        arrived = list(items)
        if arrived:
            self._average_size = sum(len(item.body) for item in arrived) / len(arrived)
        self._items.extend(arrived)
        self._low = self._target() // 2
        if len(self._items) > self._low:
            self._hungry.clear()
        self._wake(len(self._items))

    async def take(self) -> Item | None:
        """The next item; None when the buffer is closed, or the taker is dismissed."""
        while (item := self.pop()) is None and not self._closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._hungry.set()
            if not await waiter:
                return None
        return item

    def pop(self) -> Item | None:
        """The next item, if one is here."""
        items = self._items
        if not items:
            return None
        item = items.popleft()
        if len(items) <= self._low:
            self._hungry.set()
        return item

    def spans(self) -> set[int]:
        return {item.claim.span_id for item in self._items}

    async def hungry(self) -> None:
        """Wait until more is wanted."""
        await self._hungry.wait()

    def wanted(self) -> int:
        """For the free slots, and to have some ahead."""
        return max(self._slots.free + self._target() - len(self._items), 0)

    def sated(self) -> None:
        """Nothing more is wanted just now."""
        self._hungry.clear()

    def discard(self, batch_id: UUID | None = None) -> list[Item]:
        """Take back what was not sent, all of it or that of one batch."""
        gone = [item for item in self._items if batch_id is None or item.claim.batch_id == batch_id]
        if gone:
            kept = [item for item in self._items if batch_id is not None and item.claim.batch_id != batch_id]
            self._items = deque(kept)
            self._hungry.set()
        return gone

    def dismiss(self, most: int) -> int:
        """Tell up to so many takers that wait to wait no more; how many there were."""
        return self._wake(most, needed=False)

    def close(self) -> None:
        """No more items will come; takers that find nothing left go home."""
        self._closed = True
        self._wake(len(self._waiters))

    def _target(self) -> int:
        """Two seconds of work; nothing ahead while the rate is unknown. Large bodies make it fewer."""
        items = min(self._rate.per_second * self._settings.buffer_seconds, self._settings.buffer_most)
        if self._average_size:
            items = min(items, _MOST_BYTES / self._average_size)
        return int(items)

    def _wake(self, most: int, *, needed: bool = True) -> int:
        woken = 0
        while woken < most and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(needed)
                woken += 1
        return woken

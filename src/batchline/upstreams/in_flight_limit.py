"""How many requests may be in flight at one upstream, and whether a time-out counts as an attempt.

A server that works on few requests at a time queues the others. With more of them in flight than it can
answer within the timeout, requests time out that would have succeeded alone. So a time-out halves the limit,
once per round: a request that was sent before the limit was lowered says nothing about the lower one. Each
round of answers raises it by one, up to its maximum.

A time-out while other requests are in flight uses no attempt. This ends, because only answers raise the
limit: without answers it falls to one, and a request that times out alone uses an attempt. No line is spared
more than a few times, so one line that always times out cannot keep the limit low for the others.

Several producers may send to one upstream: one for its models, one for batches that name its URL. They share
its limit, and so its slots. When all are taken, requests get the next ones in the order in which they asked.
"""

import asyncio
from collections import deque

from batchline.model import Item

# The limit falls from 64 to 1 in six steps, and a line may be in flight at each of them.
_MAX_SPARED = 8
# Spared lines are remembered up to this number; time-outs of others then count.
_MAX_REMEMBERED = 10_000


class InFlightLimit:
    """`value` lies between 1 and `maximum`, and changes while requests run."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.value = maximum
        # Raised when the limit is lowered. Whoever sends a request notes it.
        self.round = 0
        # Whether answers must be counted. An attribute, because it is read for every item.
        self.adapting = False
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers = 0
        self._spared: dict[str, int] = {}

    async def enter(self) -> None:
        """Wait for a slot, and take it. Call it when none is free; `leave` gives it back."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self.in_flight < self.value:
            granted = self._waiting.popleft()
            if not granted.done():
                self.in_flight += 1
                granted.set_result(None)

    def resize(self, maximum: int) -> None:
        """Allow more or fewer; a limit that was lowered stays so."""
        self.value = maximum if self.value == self.maximum else min(self.value, maximum)
        self.maximum = maximum
        self._look()
        self._grant()

    def answered(self, item: Item) -> None:
        """Note an answer. Call it while `adapting`."""
        self.forget(item)
        if self.value < self.maximum:
            self._answers += 1
            if self._answers >= self.value:
                self._answers = 0
                self.value += 1
                self._grant()
        self._look()

    def timed_out(self, item: Item, sent_in: int, in_flight: int) -> bool:
        """Note a time-out; whether it counts as an attempt.

        `sent_in` is the round in which it was sent, `in_flight` how many requests were in flight then or now,
        itself included.
        """
        if in_flight == 1:
            return True
        self.adapting = True
        if sent_in == self.round:
            self.round += 1
            self.value = max(1, min(self.value, in_flight) // 2)
            self._answers = 0
        return not self._spare(item.request_id)

    def forget(self, item: Item) -> None:
        """The item is finished."""
        if self._spared:
            self._spared.pop(item.request_id, None)

    def _look(self) -> None:
        self.adapting = self.value < self.maximum or bool(self._spared)

    def _spare(self, name: str) -> bool:
        spared = self._spared.get(name, 0)
        if spared >= _MAX_SPARED or (not spared and len(self._spared) >= _MAX_REMEMBERED):
            return False
        self._spared[name] = spared + 1
        return True

"""How many requests may be in flight at one upstream for one model, and whether a time-out is an attempt.

With `auto` a controller finds the number (upstreams/concurrency_controller.py). A number that somebody set
holds as long as the upstream can take it: a round of requests with a time-out, or with more refusals than
answers, halves it, and each round of answers raises it by one again, up to that number.

A time-out while other requests are in flight uses no attempt. A server that works on few requests at a time
queues the others, so requests time out that would have succeeded alone. This ends, because only answers raise
the limit: without answers it falls to one, and a request that times out alone uses an attempt. No line is
spared more than a few times, so one line that always times out cannot keep the limit low for the others.

Several producers may send to one upstream: one for its models, one for batches that name its URL. They share
its limit, and so its slots. When all are taken, requests get the next ones in the order in which they asked.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from batchline.model import Item
from batchline.model.concurrency import AutoConcurrency
from batchline.upstreams.concurrency_controller import ConcurrencyController
from batchline.upstreams.limit_signal import Signal
from batchline.upstreams.server_load import ServerLoad

# The limit falls from 64 to 1 in six steps, and a line may be in flight at each of them.
_MAX_SPARED = 8
# Of more spared lines, the oldest are forgotten: most of them have ended elsewhere.
_MAX_REMEMBERED = 10_000
_FULL = frozenset({Signal.KNEE, Signal.QUEUES, Signal.REFUSED, Signal.TIMED_OUT, Signal.SLOWER, Signal.LOAD})


class InFlightLimit:
    """`value` lies between 1 and `maximum`, and changes while requests run. If the maximum is an
    AutoConcurrency, the value is found by measuring. Otherwise it starts at the maximum."""

    def __init__(self, maximum: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._controller = self._new_controller(maximum)
        self.maximum = maximum
        self.value = maximum if self._controller is None else self._controller.value
        # Raised with each change that requests sent before it say nothing about. Whoever sends a request
        # notes it.
        self.round = 0
        # Whether answers must be counted. An attribute, because it is read for every item.
        self.adapting = self._controller is not None
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers = self._refusals = 0
        self._spared: dict[str, int] = {}

    @property
    def auto(self) -> bool:
        return self._controller is not None

    @property
    def signal(self) -> Signal:
        """What the limit follows now."""
        if self._controller is not None:
            return self._controller.signal
        return Signal.AS_SET if self.value == self.maximum else Signal.LOWERED

    @property
    def reached(self) -> bool:
        """Whether the upstream gains nothing from more requests, as far as is known."""
        if self._controller is not None:
            return self._controller.signal in _FULL
        return self.value < self.maximum

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
        """Allow more or fewer; a limit that was lowered stays so. A number for an automatic limit is its
        ceiling, until it is automatic again."""
        controller = self._controller
        if controller is None and isinstance(maximum, AutoConcurrency):
            self._controller = self._new_controller(maximum)
            self.maximum = maximum
            self._follow()
        elif controller is not None:
            self.maximum = maximum
            controller.resize(int(maximum))
            self._follow()
        else:
            self.value = maximum if self.value == self.maximum else min(self.value, maximum)
            self.maximum = maximum
        self._look()
        self._grant()

    # --- Outcomes ------------------------------------------------------------------------------------------

    def answered(self, item: Item, sent_in: int, tokens: int = 0) -> None:
        """Note an answer, by the stamps of its item. Call it while `adapting`, before `leave`."""
        if self._spared:
            self.forget(item)
        controller, stamps = self._controller, item.stamps
        if controller is None:
            self._answers += 1
            self._end_round()
            return
        now = stamps.answered
        controller.answered(now, now - stamps.sent, self.in_flight, sent_in, tokens)
        if controller.round != self.round:
            self._follow()

    def failed(self, item: Item) -> None:
        """Note an answer that was an error: it may have come sooner or later than a good one."""
        self.forget(item)
        if self._controller is None:
            self._answers += 1
            self._end_round()

    def refused(self, item: Item, sent_in: int) -> None:
        """Note that the upstream took no more requests when this one came."""
        if self._controller is not None:
            self._controller.refused(item.stamps.answered, sent_in)
            self._follow()
        elif sent_in == self.round:
            self._refusals += 1
            self.adapting = True
            self._end_round()

    def timed_out(self, item: Item, sent_in: int, in_flight: int) -> bool:
        """Note a time-out; whether it counts as an attempt.

        `sent_in` is the round in which it was sent, `in_flight` how many requests were in flight then or now,
        itself included.
        """
        if in_flight == 1:
            return True
        self.adapting = True
        if self._controller is not None:
            self._controller.timed_out(item.stamps.answered, in_flight, sent_in)
            self._follow()
        elif sent_in == self.round:
            self._halve(in_flight)
        return not self._spare(item.request_id)

    def loaded(self, now: float, load: ServerLoad) -> None:
        """Note what runs and waits at the upstream by its own account."""
        if self._controller is not None:
            self._controller.load(now, load)
            self._follow()

    def forget(self, item: Item) -> None:
        """The item is finished."""
        if self._spared:
            self._spared.pop(item.request_id, None)

    # --- Changes -------------------------------------------------------------------------------------------

    def _new_controller(self, maximum: int) -> ConcurrencyController | None:
        if not isinstance(maximum, AutoConcurrency):
            return None
        return ConcurrencyController(int(maximum), self._wall_clock)

    def _follow(self) -> None:
        """Take over what the controller has decided."""
        controller = self._controller
        if controller is not None:
            self.value, self.round = controller.value, controller.round
            self._grant()

    def _end_round(self) -> None:
        """Of a limit that was set: as many answers and refusals as the limit are a round."""
        if self._answers + self._refusals >= self.value:
            if self._refusals > self._answers:
                self._halve(self.value)
            elif self.value < self.maximum:
                self.value += 1
                self._grant()
            self._answers = self._refusals = 0
        self._look()

    def _halve(self, in_flight: int) -> None:
        self.round += 1
        self.value = max(1, min(self.value, in_flight) // 2)
        self._answers = self._refusals = 0

    def _look(self) -> None:
        lowered = self.value < self.maximum or bool(self._spared) or self._refusals > 0
        self.adapting = self._controller is not None or lowered

    def _spare(self, name: str) -> bool:
        spared = self._spared.get(name, 0)
        if spared >= _MAX_SPARED:
            return False
        if not spared and len(self._spared) >= _MAX_REMEMBERED:
            del self._spared[next(iter(self._spared))]
        self._spared[name] = spared + 1
        return True

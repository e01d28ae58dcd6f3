"""Which request may be sent to an upstream now.

A request waits while the breaker is open, unless its line is the one that tries. It waits while another line
runs alone, and for the pace of an upstream that refuses requests with 429. In that order: what it has waited
for first may have changed, so it looks again before it goes.
"""

import asyncio
from collections.abc import Callable, Mapping

from batchline.model import Item
from batchline.upstreams.availability import Availability
from batchline.upstreams.breaker import BreakerState
from batchline.upstreams.pace import Pace
from batchline.upstreams.quarantine import ALONE_FROM, Quarantine
from batchline.upstreams.retry import rounded_up
from batchline.upstreams.timing import Timing

# A line that must run alone and may not comes back after about so many seconds.
_NOT_ALONE = 4.0


class Admission:
    """`sent` are the requests in flight. `on_limited` is called with whether a request may have to wait."""

    def __init__(
        self,
        sent: Mapping[int, float],
        availability: Availability,
        stopping: asyncio.Event,
        timing: Timing,
        on_limited: Callable[[bool], None],
    ) -> None:
        self._sent = sent
        self._availability = availability
        self._breaker = availability.breaker
        self._stopping = stopping
        self._timing = timing
        self._on_limited = on_limited
        self.quarantine = Quarantine()
        self.pace: Pace | None = None
        # Set and replaced when waiting requests must look again.
        self._changed = asyncio.Event()
        availability.on_change = self._available_or_not

    async def may_send(self, fence: Callable[[], object | None], item: Item) -> bool:
        """Wait until this request may be sent. False: do not send it. See `Upstream.may_send`."""
        sender, key, allowed = fence(), id(item), False
        alone = item.claim.crashes >= ALONE_FROM
        try:
            while await self._passes(key, alone=alone):
                if self._may_pass(key, alone=alone):
                    allowed = sender is not None and fence() == sender
                    break
        finally:
            if not allowed:
                self.release(key)
        return allowed

    def release(self, key: int) -> None:
        """A line does not try or run alone any more; those that wait look again."""
        changed = self._breaker.end_trial(key)
        if self.quarantine.reserved_by == key:
            self.quarantine.reserved_by = None
            changed = True
            self._look()
        if changed or (self.quarantine.reserved_by is not None and not self._sent):
            self._wake_waiting()

    def rest_of(self, item: Item) -> float:
        """How long this line should wait if it may not be sent now. One that must run alone may have met that
        of another worker: both wait, and not for the same time."""
        rest = self._availability.rest
        if item.claim.crashes < ALONE_FROM or self._stopping.is_set():
            return rest
        return max(rest, rounded_up(_NOT_ALONE * (0.5 + self._timing.random())))

    async def _passes(self, key: int, *, alone: bool) -> bool:
        return (
            await self._breaker_passes(key)
            and await self._unreserved(key, alone=alone)
            and await self._paced()
        )

    def _may_pass(self, key: int, *, alone: bool) -> bool:
        """Whether nothing has changed while it waited for the pace."""
        breaker = self._breaker
        return (breaker.closed or breaker.trying == key) and not self._is_reserved(key, alone=alone)

    # --- A line that tries ---------------------------------------------------------------------------------

    async def _breaker_passes(self, key: int) -> bool:
        """True if it is closed, or if this line may try. False if it has opened again meanwhile."""
        breaker, opened = self._breaker, self._breaker.round
        while not breaker.closed:
            if breaker.state is BreakerState.TRIAL:
                if breaker.try_line(key):
                    return True
                if not breaker.patience_left:
                    self._availability.recovered()
                    continue
            seconds = breaker.patience_left if breaker.trying is not None else None
            if not await self._change_within(seconds) or breaker.round != opened:
                return False
        return True

    # --- A line that runs alone ----------------------------------------------------------------------------

    def _is_reserved(self, key: int, *, alone: bool) -> bool:
        """Whether another line runs alone, or this one would not be alone."""
        by = self.quarantine.reserved_by
        return by not in (None, key) or (alone and bool(self._sent))

    async def _unreserved(self, key: int, *, alone: bool) -> bool:
        while self._is_reserved(key, alone=alone):
            if alone and self.quarantine.reserved_by is None:
                self._reserve(key)
            elif not await self._change_within(None):
                return False
        if alone:
            self._reserve(key)
            return await self.quarantine.is_ours()
        return True

    def _reserve(self, key: int) -> None:
        self.quarantine.reserved_by = key
        self._look()

    # --- The pace ------------------------------------------------------------------------------------------

    def slow_down(self, answered: float) -> Pace:
        """The upstream refuses requests and has no pace yet: one that begins near this rate of answers."""
        pace = self.pace = Pace(answered, self._timing.clock)
        self._look()
        return pace

    def current_pace(self) -> Pace | None:
        """None if the upstream has refused nothing for a while."""
        if self.pace is not None and self.pace.over:
            self.pace = None
            self._look()
        return self.pace

    async def _paced(self) -> bool:
        if (pace := self.current_pace()) is not None:
            async with pace.line:
                # Asked again after each wait: the rate may have been cut meanwhile.
                while seconds := pace.acquire():
                    if await self._timing.is_set_within(self._stopping, seconds):
                        return False
        return True

    # --- Changes -------------------------------------------------------------------------------------------

    def _available_or_not(self) -> None:
        self._look()
        self._wake_waiting()

    def _look(self) -> None:
        reserved = self.quarantine.reserved_by is not None
        self._on_limited(self.pace is not None or not self._breaker.closed or reserved)

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change_within(self, seconds: float | None) -> bool:
        """Wait for a change, so long at most; False if the worker stops."""
        if not self._stopping.is_set():
            events = [asyncio.ensure_future(event.wait()) for event in (self._changed, self._stopping)]
            try:
                async with asyncio.timeout(None) if seconds is None else self._timing.timer(seconds):
                    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                pass
            finally:
                for event in events:
                    event.cancel()
        return not self._stopping.is_set()

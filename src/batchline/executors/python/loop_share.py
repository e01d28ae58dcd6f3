"""Keeps the event loop responsive while handlers never wait.

A handler that returns without waiting lets its runner take the next item at once. Nothing else would run
until no item is left: no heartbeat, no settle. So the calls of one pass of the event loop share a few
milliseconds. What does not fit waits for a later pass: each wakes one call, which makes room for the next if
it waits itself. To wake all of them in each pass would cost more than short handlers do.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

_SECONDS = 0.005


class LoopShare:
    """One for all operations of a worker."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # When the first call of this pass began; None: there was none.
        self._began: float | None = None
        self._expected = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def used_up(self) -> bool:
        """Whether a call must wait for a later pass. Asked before each call."""
        now = self._clock()
        if self._began is None:
            self._began = now
            self._expect_next_pass()
        return now - self._began > _SECONDS

    def later_pass(self) -> "asyncio.Future[None]":
        """Done in a later pass."""
        wakeup = asyncio.get_running_loop().create_future()
        self._waiting.append(wakeup)
        return wakeup

    def _expect_next_pass(self) -> None:
        if not self._expected:
            self._expected = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._began, self._expected = None, False
        while self._waiting:
            wakeup = self._waiting.popleft()
            # Others were cancelled meanwhile.
            if not wakeup.done():
                wakeup.set_result(None)
                break
        if self._waiting:
            self._expect_next_pass()

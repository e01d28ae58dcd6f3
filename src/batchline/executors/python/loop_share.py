"""Keeps the event loop responsive while handlers never wait.

A handler that returns without waiting lets its runner take the next item at once. Nothing else would run
until no item is left: no heartbeat, no settle. So the calls of one pass of the event loop share a few
milliseconds. What does not fit waits for the next pass.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

_SECONDS = 0.005


class LoopShare:
    """One for all operations of a worker."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # When the first call of this pass began; None: there was none.
        self._began: float | None = None

    def used_up(self) -> bool:
        """Whether a call must wait for the next pass. Asked before each call."""
        now = self._clock()
        if self._began is None:
            self._began = now
            asyncio.get_running_loop().call_soon(self._next_pass)
        return now - self._began > _SECONDS

    def _next_pass(self) -> None:
        self._began = None

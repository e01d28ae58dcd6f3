"""Clocks, chance and timers of upstreams."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Tests replace what it has."""

    # Seconds that only pass, and Unix time.
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    random: Callable[[], float] = random.random
    timer: Callable[[float], asyncio.Timeout] = asyncio.timeout

    async def is_set_within(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, so long at most; whether it is set."""
        if not seconds:
            return event.is_set()
        try:
            async with self.timer(seconds):
                return await event.wait()
        except TimeoutError:
            return False

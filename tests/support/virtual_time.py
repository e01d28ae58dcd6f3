"""An event loop whose time jumps to the next timer instead of waiting for it.

with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
    runner.run(asyncio.sleep(3600))     # at once

For what only waits. Whoever waits for a database or a process must use real time.
"""

import asyncio
import math
import selectors
from collections.abc import Callable


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self._advance(timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_JumpingSelector(self._advance))
        self._advance(0.0)

    def time(self) -> float:
        return self._seconds

    def _advance(self, seconds: float) -> None:
        self._seconds += seconds
        # asyncio fires timers that are due in less than this. With a nanosecond, as usual, time would stand
        # still: whoever then waits for the rest of that nanosecond would wait for ever.
        self._clock_resolution = math.ulp(self._seconds)

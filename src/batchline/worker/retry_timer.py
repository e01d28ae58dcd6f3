"""Calls back when the first of the expected retries comes due. It does not remember later ones."""

import asyncio
from collections.abc import Callable


class RetryTimer:
    """`idle` is set while no retry is expected."""

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def expect(self, delay: float) -> None:
        """A retry comes due in so many seconds. The call comes a moment after that."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay + 0.002
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self.idle.clear()
        self._timer = loop.call_at(due, self._due)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.idle.set()

    def _due(self) -> None:
        self._timer = None
        # First wake others, then become idle: a worker that drains must not see all of them idle in between.
        self._on_due()
        if self._timer is None:
            self.idle.set()

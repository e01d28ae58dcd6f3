"""Timers on a clock that a test moves. They take the place of an event loop whose timers are real ones."""

from collections.abc import Callable
from functools import partial
from itertools import count


class SteppedTimers:
    """Has what simulators use of an event loop. `now` is the clock that goes with the timers."""

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count()
        self._set: list[tuple[float, int, Callable[[], object]]] = []

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, act: Callable[..., object], *args: object) -> None:
        self._set.append((self._now + delay, next(self._numbers), partial(act, *args)))

    def advance(self, seconds: float) -> None:
        """Let so much time pass. Timers go off in their order, also those that others set meanwhile."""
        end = self._now + seconds
        while due := sorted(timer for timer in self._set if timer[0] <= end + 1e-9):
            self._set.remove(due[0])
            self._now, _, act = due[0]
            act()
        self._now = end

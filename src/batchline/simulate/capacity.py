"""How many requests the simulated upstream executes at once, and when that changes.

Steps count from the first request, so that the time that a caller needs to start does not matter.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

_STEP = re.compile(r"(?P<time>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m):(?P<requests>[0-9]{1,9})")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Timers(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: object) -> object: ...


@dataclass(frozen=True, slots=True)
class CapacityStep:
    after_s: float
    requests: int
    """Executed at once from then on. 0: none, not: without limit."""


def parsed_steps(text: str) -> tuple[CapacityStep, ...]:
    """Read steps such as `30s:16,60s:4`. Raises ValueError."""
    steps = tuple(_parsed(part.strip()) for part in text.split(",")) if text else ()
    for before, step in pairwise(steps):
        if step.after_s <= before.after_s:
            raise ValueError(f"capacity_steps must come one after the other, but are {text!r}")
    return steps


def _parsed(text: str) -> CapacityStep:
    found = _STEP.fullmatch(text)
    if found is None:
        raise ValueError(
            f"capacity_steps must be times and numbers of requests such as '30s:16,60s:4', not {text!r}"
        )
    return CapacityStep(float(found["time"]) * _SECONDS[found["unit"]], int(found["requests"]))


class Capacity:
    """`changed` is called after each step."""

    def __init__(
        self, first: int | None, steps: tuple[CapacityStep, ...], timers: Timers, changed: Callable[[], None]
    ) -> None:
        self.requests = first
        """Executed at once; None: no limit."""
        self._first = first
        self._steps = steps
        self._timers = timers
        self._changed = changed
        self._run = 0
        self._started = not steps

    def start(self) -> None:
        """Let the time of the steps begin, at the first call only."""
        if self._started:
            return
        self._started = True
        for step in self._steps:
            self._timers.call_later(step.after_s, self._take, self._run, step.requests)

    def reset(self) -> None:
        """Go back to before the first request."""
        self._run += 1
        self._started = not self._steps
        self.requests = self._first

    def _take(self, run: int, requests: int) -> None:
        # Timers of an earlier run say nothing about this one.
        if run == self._run:
            self.requests = requests
            self._changed()

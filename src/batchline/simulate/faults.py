"""Injected faults and the rate limit."""

import math
from collections.abc import Callable
from enum import Enum, auto
from itertools import accumulate
from random import Random

from batchline.simulate.settings import SimulateSettings


class InjectedFault(Enum):
    DROP_BEFORE = auto()
    """The connection is closed before the request was executed."""
    DROP_AFTER = auto()
    """The connection is closed after the request was executed."""
    HANG = auto()
    ERROR_500 = auto()
    ERROR_503 = auto()
    REFUSE = auto()


class FaultDice:
    """One throw per request: with the same seed, the n-th admitted request always has the same fault."""

    def __init__(self, settings: SimulateSettings) -> None:
        shares = {
            InjectedFault.DROP_BEFORE: settings.drop_rate / 2,
            InjectedFault.DROP_AFTER: settings.drop_rate / 2,
            InjectedFault.HANG: settings.hang_rate,
            InjectedFault.ERROR_500: settings.error_rate / 2,
            InjectedFault.ERROR_503: settings.error_rate / 2,
            InjectedFault.REFUSE: settings.refuse_rate,
        }
        self._ladder = list(zip(accumulate(shares.values()), shares, strict=True))
        self._loaded = any(shares.values())
        self._throw = Random(settings.seed).random

    def throw(self) -> InjectedFault | None:
        if not self._loaded:
            return None
        point = self._throw()
        for bound, fault in self._ladder:
            if point < bound:
                return fault
        return None


class TokenBucket:
    """Admits `rate` requests, or what else is counted, per second, in bursts of up to one second's worth."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._capacity = max(1.0, rate)
        self._tokens = self._capacity
        self._clock = clock
        self._filled_at = clock()

    @property
    def remaining(self) -> int:
        self._fill()
        return max(0, math.floor(self._tokens))

    @property
    def full_in_s(self) -> float:
        self._fill()
        return (self._capacity - self._tokens) / self.rate

    def wait_s(self) -> float:
        """Take a token and return 0, or take none and return the seconds until there is one."""
        wait_s = self.missing_s(1)
        if not wait_s:
            self.take(1)
        return wait_s

    def missing_s(self, cost: float) -> float:
        """Seconds until so much may be taken. More than a full bucket holds may be taken from a full one."""
        self._fill()
        missing = min(cost, self._capacity) - self._tokens
        # Rounded up to milliseconds, so that a client that obeys Retry-After exactly finds a token.
        return math.ceil(missing / self.rate * 1000) / 1000 if missing > 0 else 0.0

    def take(self, cost: float) -> None:
        self._tokens -= cost

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now

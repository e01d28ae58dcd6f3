"""When to try again.

Delays have full jitter, so that requests which failed together are not sent again together. They are
rounded to a coarse grid, because a settle puts items with the same delay into one span.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_REQUESTED = 3600.0

# The grid's finest step is 2**-4 s; from 1 s on a step is an eighth to a sixteenth of the delay. Steps are
# powers of two, so that rounding is exact.
_FINEST = -4

_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `minimum` to `maximum`; a delay is a random part of that."""

    minimum: float = 0.5
    maximum: float = 60.0

    def ceiling(self, nth: int) -> float:
        """The longest delay after the nth failure in a row, counted from 1."""
        # Bounded, because a float would overflow.
        return min(self.maximum, self.minimum * 2.0 ** min(nth - 1, 64))

    def delay(self, nth: int, random: Callable[[], float]) -> float:
        return random() * self.ceiling(nth)


class Outage:
    """An upstream that is not there, from the first failure to the next answer.

    Failures count in rounds: the delay grows only when a request fails that was started after the last delay
    had passed. All requests that fail meanwhile share that delay, so their items wait in few spans.
    """

    def __init__(self, backoff: Backoff, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._random = random
        self._rounds = 0
        # What requests that failed in this round share.
        self.delay = 0.0
        self._next_round = -math.inf
        self.began = self.tried_at = clock()
        self.reason = ""

    @property
    def seconds_left(self) -> float:
        """Until the next try makes sense."""
        return max(self._next_round - self._clock(), 0.0)

    def failed(self, started: float, reason: str) -> float:
        """Note that a request started then has failed; how long to wait."""
        self.reason = reason
        self.tried_at = self._clock()
        if started >= self._next_round:
            self._rounds += 1
            self.delay = rounded_up(self._backoff.delay(self._rounds, self._random))
            self._next_round = self._clock() + self.delay
        return self.delay


def rounded_up(delay: float) -> float:
    """The next point of the grid, never zero."""
    _, exponent = math.frexp(delay)
    step = math.ldexp(1.0, max(exponent - 4, _FINEST))
    return max(step, math.ceil(delay / step) * step)


def requested_delay(header: Callable[[str], str | None], now: float) -> float:
    """The seconds that an answer's headers ask to wait, 0 if they ask for none. `now` is Unix time."""
    milliseconds = _number(header("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_REQUESTED)
    value = header("retry-after")
    seconds = _number(value)
    if seconds is None and value is not None:
        # By the upstream's own clock if it tells, as ours may differ.
        at, since = _date(value), _date(header("date") or "")
        seconds = 0.0 if at is None else at - (now if since is None else since)
    return min(max(seconds or 0.0, 0.0), MAX_REQUESTED)


def _number(text: str | None) -> float | None:
    """A plain decimal number: `float` alone would also take nan, 1e9 and 1_000."""
    return float(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _date(text: str) -> float | None:
    try:
        at = parsedate_to_datetime(text)
        # HTTP's dates are in GMT, also the kind that does not say so.
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None

"""The breaker of an upstream: whether lines are sent to it.

It opens when no connection can be made, and when for a while nothing but gateway errors (502, 503, 504) and
lost connections come back. While it is open nothing is sent. After a delay, which grows from round to round,
one line at a time is sent to try; if it is answered, the breaker closes. Any answer that is not a gateway
error shows that the upstream is there, also a refusal or an error.

The state is pure: it has no tasks and no timers of its own.
"""

from collections.abc import Callable
from enum import Enum

from batchline.upstreams.retry import Backoff, Outage

GATEWAY_ERRORS = frozenset({502, 503, 504})
"""Statuses of a gateway whose backend is missing, or too busy."""

# So many in a row open the breaker, if they lie so far apart and are of several lines: a few errors during a
# restart, or one bad line, do not. With few requests in flight fewer are enough, because they take longer.
_MAX_IN_ROW = 10
_MIN_IN_ROW = 3
_MIN_SECONDS = 2.0
_MIN_LINES = 2
# One line alone opens it after so many seconds: it may be all that is left.
_MIN_SECONDS_ALONE = 15.0
# A line that tries, and has not failed after this many seconds, has been taken: others need not wait for its
# answer, which may take minutes. Longer than a connection may take (HttpSettings.connect_timeout): a host
# that drops packets has taken nothing.
PATIENCE = 15.0


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    # Lines may try it, one at a time.
    TRIAL = "trial"


class FailureStreak:
    """Gateway errors and lost connections since the last answer that was none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = 0.0
        self._lines: set[str] = set()
        self.count = 0

    def failed(self, line: str, in_flight: int) -> bool:
        """Note a failure; whether there were so many that the upstream is not there."""
        now = self._clock()
        if not self.count:
            self._began = now
        self.count += 1
        if len(self._lines) < _MIN_LINES:
            self._lines.add(line)
        needed = min(_MAX_IN_ROW, max(_MIN_IN_ROW, 2 * in_flight))
        several = len(self._lines) >= _MIN_LINES
        apart = now - self._began >= (_MIN_SECONDS if several else _MIN_SECONDS_ALONE)
        return self.count >= needed and apart

    def end(self) -> None:
        self.count = 0
        self._lines.clear()


class Breaker:
    """`round` counts how often it has opened, also again after a trial."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._random = random
        self.state = BreakerState.CLOSED
        self.outage: Outage | None = None
        self.round = 0
        # The line that tries, by any key, and since when.
        self.trying: int | None = None
        self._tried_at = 0.0

    @property
    def closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    @property
    def seconds_left(self) -> float:
        """Until lines may try it."""
        return 0.0 if self.outage is None else self.outage.seconds_left

    def fail(self, started: float, reason: str) -> float:
        """Open it, or leave it open, because a request that was started then failed; how long to wait."""
        if self.outage is None:
            self.outage = Outage(self._backoff, self._clock, self._random)
        delay = self.outage.failed(started, reason)
        if self.state is not BreakerState.OPEN and self.outage.seconds_left:
            self.state = BreakerState.OPEN
            self.round += 1
            self.trying = None
        return delay

    def allow_trial(self) -> None:
        """The delay has passed, and the health check has succeeded if there is one."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.TRIAL

    def try_line(self, key: int) -> bool:
        """Whether this line may be sent now: it is the one that tries."""
        if self.trying is not None and self.trying != key:
            return False
        self.trying = key
        self._tried_at = self._clock()
        return True

    def end_trial(self, key: int) -> bool:
        """The line that tries was not sent after all, or has ended; whether it was this line."""
        if self.trying != key:
            return False
        self.trying = None
        return True

    @property
    def patience_left(self) -> float:
        """Seconds until the line that tries is taken as accepted."""
        return max(self._tried_at + PATIENCE - self._clock(), 0.0)

    def close(self) -> None:
        self.state = BreakerState.CLOSED
        self.outage = None
        self.trying = None

"""How fast to send to an upstream that refuses requests with 429.

Waiting longer after each refusal is not enough: as many requests as before come back a little later, and some
of them are refused until their attempts are used up. So after the first 429, requests to that upstream go out
one by one. Without a 429 nothing is slowed down.

The rate is cut once per round: a request that was sent before a cut, or too soon after it to show its effect,
says nothing about the new rate. After half a second the rate doubles each second, up to just below the rate
that was refused; from there it grows slowly at first. Workers that share a limit do not know of each other.
They converge to equal shares, because each step up goes by the root of the rate, which is relatively smaller
for the faster worker, and each cut is proportional.
"""

import asyncio
import math
from collections.abc import Callable

# A cut shows only in what is sent this long after it: limits are often filled up anew every second or less.
_ROUND = 0.5
_CUT = 0.75
_DEEP_CUT = 0.5
# Of the rate that was refused: up to here it is known to have gone well a moment ago.
_GOOD = 0.9
# The first rate if nothing was answered yet. It doubles, so it need not be near the limit.
_START = 5.0
_MINIMUM = 0.5
# The root of the rate grows by this times the cube of the seconds. At 100 per second that is 1 % more after
# 1.4 s, 10 % after 2.9 s, half as much again after 4.8 s, twice as much after 5.9 s.
_PROBE = 0.02
# Below this rate seconds count less; otherwise most of the few requests would be refused.
_SPARSE = 10.0
# Requests that go out late are made up for, up to this time: timers are no finer than a millisecond.
_SLACK = 0.05
# The refused item waits as long as the upstream asks; all others wait no longer than for an outage.
_LONGEST_PAUSE = 30.0
# After this long without a refusal, the pace is forgotten.
_FORGET_AFTER = 60.0


class Pace:
    """`answered` is how many requests per second the upstream answered when it first refused one."""

    def __init__(self, answered: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cut_to = max(answered * _CUT, _START)
        # The limit is still unknown: few answers may only mean few requests.
        self._good = math.inf
        self._cut_at = self._refused_at = self._next = clock()
        # Seconds since the cut in which the rate was not tried.
        self._idle = 0.0
        # Whoever waits holds this, so that one timer runs, not one for each waiting request.
        self.line = asyncio.Lock()

    @property
    def over(self) -> bool:
        return self._clock() - self._refused_at > _FORGET_AFTER

    @property
    def rate(self) -> float:
        """Requests per second, now."""
        seconds = self._clock() - self._cut_at - self._idle - _ROUND
        if seconds <= 0:
            return self._cut_to
        recovered = math.log2(self._good / self._cut_to)
        if seconds <= recovered:
            return self._cut_to * math.exp2(seconds)
        probing = (seconds - recovered) * min(1.0, self._good / _SPARSE)
        return math.pow(math.sqrt(self._good) + _PROBE * math.pow(probing, 3), 2)

    @property
    def seconds_left(self) -> float:
        """Until the next request may go out."""
        return max(self._next - self._clock(), 0.0)

    def refused(self, sent_at: float, retry_after: float) -> None:
        """Note that a request sent then was refused, and how long the upstream asks to wait."""
        now = self._refused_at = self._clock()
        if sent_at >= self._cut_at + _ROUND:
            self._cut(now)
        self._pause(now, now + min(retry_after, _LONGEST_PAUSE))

    def acquire(self) -> float:
        """Return 0 if a request may go out now, and count it; else the seconds until one may."""
        now = self._clock()
        if now < self._next:
            return self._next - now
        late = now - self._next - _SLACK
        if late > 0:
            # Nothing was sent meanwhile: a rate that was not tried proves nothing.
            self._idle += late
            self._next += late
        self._next += 1 / self.rate
        return 0.0

    def _cut(self, now: float) -> None:
        rate = self.rate
        if rate > self._good or math.isinf(self._good):
            self._cut_to, self._good = rate * _CUT, rate * _GOOD
        else:
            # Refused again before it had recovered: the limit has changed. The rate that was known to be good
            # is lowered more slowly, so that a few bad seconds do not cost a minute.
            self._cut_to, self._good = rate * _DEEP_CUT, max(rate, self._good * _CUT)
        self._cut_to = max(self._cut_to, _MINIMUM)
        self._good = max(self._good, self._cut_to)
        self._cut_at, self._idle = now, 0.0

    def _pause(self, now: float, until: float) -> None:
        if until > self._next:
            # A rate grows by being tried, not by waiting.
            self._idle += until - max(self._next, now)
            self._next = until


class AnswerRate:
    """Answers per second, over the last one or two seconds, at the cost of a comparison each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._mark = self._last_mark = (clock(), 0)

    def add(self) -> float:
        """Count an answer; the time."""
        self._count += 1
        now = self._clock()
        if now - self._mark[0] > 1.0:
            self._last_mark, self._mark = self._mark, (now, self._count)
        return now

    @property
    def per_second(self) -> float:
        since, before = self._last_mark
        # Less than a second says little: many limits are refilled every second, and a burst uses them up.
        return (self._count - before) / max(self._clock() - since, 1.0)

"""How fast an upstream that refuses with 429 lets itself be asked.

Waiting longer after each refusal is not enough: as many requests as before come back a little later, and
some of them are refused until their attempts are used up. So from the first 429 on, requests to that
upstream leave one by one. Without a 429 nothing is slowed down.

The rate is cut once a round: what was sent before a cut, or too soon after it to show what the cut did, is
refused for what was done before. Half a second later it doubles each second, up to just below where it was
refused; from there it feels its way up, slowly at first. Workers that share a limit do not know of each
other: they come to equal shares because a step up is by the root of the rate, smaller in proportion for the
faster one, and a cut is in proportion.
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
# What one starts from when nothing was answered yet. It doubles, so this need not be near the limit.
_START = 5.0
_MINIMUM = 0.5
# The root of the rate grows by this times the cube of the seconds. At 100 a second that is 1 % more after
# 1.4 s, 10 % after 2.9 s, half as much again after 4.8 s, twice as much after 5.9 s.
_PROBE = 0.02
# Below this rate seconds count less, or of the few that are sent most would be refused.
_SPARSE = 10.0
# Turns that came late are made up for, as far as this: timers are no finer than a millisecond.
_SLACK = 0.05
# The item that was refused waits for as long as it was told; all others for no longer than for an outage.
_LONGEST_PAUSE = 30.0
# After this long without a refusal the limit is gone, or was never reached again.
_FORGET_AFTER = 60.0


class Pace:
    """`answered` is what the upstream answered, in requests a second, when it first refused."""

    def __init__(self, answered: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cut_to = max(answered * _CUT, _START)
        # Of the limit nothing is known yet: little may have been answered because little was asked.
        self._good = math.inf
        self._cut_at = self._refused_at = self._next = clock()
        # Seconds since the cut in which the rate was not tried.
        self._idle = 0.0
        # Whoever waits for a turn holds this, so that one timer runs, not one for each that waits.
        self.line = asyncio.Lock()

    @property
    def over(self) -> bool:
        return self._clock() - self._refused_at > _FORGET_AFTER

    @property
    def rate(self) -> float:
        """In requests a second, now."""
        seconds = self._clock() - self._cut_at - self._idle - _ROUND
        if seconds <= 0:
            return self._cut_to
        recovered = math.log2(self._good / self._cut_to)
        if seconds <= recovered:
            return self._cut_to * math.exp2(seconds)
        probing = (seconds - recovered) * min(1.0, self._good / _SPARSE)
        return math.pow(math.sqrt(self._good) + _PROBE * math.pow(probing, 3), 2)

    def refused(self, sent_at: float, retry_after: float) -> None:
        """Note that what was sent then was refused, and that the upstream asks to be left alone so long."""
        now = self._refused_at = self._clock()
        if sent_at >= self._cut_at + _ROUND:
            self._cut(now)
        self._pause(now, now + min(retry_after, _LONGEST_PAUSE))

    def acquire(self) -> float:
        """Take the turn that is due and return 0, or take none and return the seconds until there is one."""
        now = self._clock()
        if now < self._next:
            return self._next - now
        late = now - self._next - _SLACK
        if late > 0:
            # Nobody wanted the turn: a rate that was not tried is no rate to build on.
            self._idle += late
            self._next += late
        self._next += 1 / self.rate
        return 0.0

    def _cut(self, now: float) -> None:
        rate = self.rate
        if rate > self._good or math.isinf(self._good):
            self._cut_to, self._good = rate * _CUT, rate * _GOOD
        else:
            # Refused again before it had recovered: the limit is elsewhere, and to be found soon. What went
            # well is given up more slowly, so that a few bad seconds do not cost a minute.
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
    """Answers a second, over the last one or two seconds, at the price of a comparison each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._mark = self._last_mark = (clock(), 0)

    def add(self) -> None:
        self._count += 1
        now = self._clock()
        if now - self._mark[0] > 1.0:
            self._last_mark, self._mark = self._mark, (now, self._count)

    @property
    def per_second(self) -> float:
        since, before = self._last_mark
        # Less than a second says little: limits are filled up anew every second, and a burst empties them.
        return (self._count - before) / max(self._clock() - since, 1.0)

"""How fast an upstream that refuses with 429 lets itself be asked.

Waiting longer after each refusal is not enough: as many requests as before come back a little later, and
some of them are refused until their attempts are used up. So from the first 429 on, requests to that
upstream leave one by one, at a rate below what it answered just before; every round of refusals sets the
rate anew by what was answered in that round, and it grows slowly while there are none. Without a 429 nothing
is slowed down.
"""

from collections.abc import Callable

# A refusal within this time of the last cut belongs to the same round.
_ROUND = 0.5
_CUT = 0.8
_GROWTH_PER_SECOND = 0.05
_LEAST = 0.5
# After this long without a refusal the limit is gone, or was never reached again.
_FORGET_AFTER = 60.0


class Pace:
    """`rate` is what the upstream answered, in requests a second, when it first refused."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = max(rate * _CUT, _LEAST)
        self._set_at = self._next = clock()
        self._answered = 0

    @property
    def over(self) -> bool:
        return self._clock() - self._set_at > _FORGET_AFTER

    def answered(self) -> None:
        self._answered += 1

    def refused(self, retry_after: float) -> None:
        now = self._clock()
        elapsed = now - self._set_at
        if elapsed > _ROUND:
            self._rate = max(min(self._current(now), self._answered / elapsed) * _CUT, _LEAST)
            self._set_at = now
            self._answered = 0
        self._next = max(self._next, now + min(retry_after, 1.0))

    def turn(self) -> float:
        """Take the next turn; how many seconds to wait for it."""
        now = self._clock()
        at = max(self._next, now)
        self._next = at + 1 / self._current(now)
        return at - now

    def _current(self, now: float) -> float:
        return self._rate * (1 + _GROWTH_PER_SECOND * (now - self._set_at))


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

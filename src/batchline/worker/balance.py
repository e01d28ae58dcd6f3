"""How several upstreams of one model share its lines while more than one of them has room.

Each claims what it can take. Without a rule, the one that asks first would take a small batch whole. So a
member that is ahead of another one that asks, too, waits until that one has claimed. What counts is the
number of lines per weight. A member that asks alone is never held back: the others are full, or unavailable.
"""

import math
from collections.abc import Collection, Sequence

# Lines that all members together may claim before the slowest of them has its share: at first, and as a part
# of what was claimed since a claim found less than it wanted. So claims of a large batch are large.
_FIRST_STEP = 8
_PART = 1 / 8
# A member that was full or unavailable for long catches up by no more than so many steps.
_MAX_BEHIND = 2


class Balance:
    """Members are numbers, from 0 on. A weight of 0 counts as 1: such members ask only among themselves."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = [max(weight, 1) for weight in weights]
        # Lines claimed per weight.
        self._levels = [0.0] * len(weights)
        # Lines claimed since a claim found less than it wanted.
        self._streak = 0

    def allowed(self, member: int, asking: Collection[int]) -> int | None:
        """How many lines a member may claim now; None: any number. `asking`: all that would claim."""
        others = [other for other in asking if other != member]
        if not others:
            return None
        step, floor = self._bounds([member, *others])
        lowest = max(min(self._levels[other] for other in others), floor)
        ahead = max(self._levels[member], floor) - lowest
        return max(math.ceil((step - ahead) * self._weights[member]), 0) if ahead < step else 0

    def claimed(self, member: int, lines: int, wanted: int, asking: Collection[int]) -> None:
        """A claim for `wanted` lines has found so many."""
        _, floor = self._bounds([member, *asking])
        self._levels[member] = max(self._levels[member], floor) + lines / self._weights[member]
        self._streak = self._streak + lines if lines >= wanted else 0

    def _bounds(self, members: Sequence[int]) -> tuple[float, float]:
        """How far one may be ahead of another, and the lowest level that counts."""
        total = sum(self._weights[each] for each in set(members))
        step = max(_FIRST_STEP, self._streak * _PART) / total
        return step, max(self._levels[each] for each in members) - _MAX_BEHIND * step

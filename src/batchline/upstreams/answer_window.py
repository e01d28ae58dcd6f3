"""Answers that came while one limit held, and what a higher limit gains over a lower one.

Goodput is in flight divided by latency (Little's law), so latencies tell it, and do not depend on when a
burst of answers comes. Latency grows with the length of an answer. Where lengths are known, the two limits
are compared as if their answers had the same mean length.
"""

import math
from dataclasses import dataclass


class AnswerWindow:
    """Sums over answers and refusals. To add an answer costs a few additions."""

    __slots__ = (
        "answers",
        "full",
        "refusals",
        "seconds",
        "seconds_squared",
        "tokens",
        "tokens_seconds",
        "tokens_squared",
    )

    def __init__(self) -> None:
        self.answers = 0
        self.seconds = 0.0
        self.seconds_squared = 0.0
        # Answers that came while all slots were taken.
        self.full = 0
        self.refusals = 0
        self.tokens = 0.0
        self.tokens_squared = 0.0
        self.tokens_seconds = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self.answers += 1
        self.seconds += seconds
        self.seconds_squared += seconds * seconds
        if tokens:
            self.tokens += tokens
            self.tokens_squared += tokens * tokens
            self.tokens_seconds += tokens * seconds

    def fade(self) -> None:
        """Let its answers count half."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) / 2)

    def merge(self, other: "AnswerWindow") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mean(self) -> float:
        """Seconds per answer."""
        return self.seconds / self.answers

    @property
    def spread(self) -> float:
        """The standard deviation of latencies, as a share of their mean."""
        return math.sqrt(max(self.seconds_squared / self.answers - self.mean**2, 0.0)) / self.mean

    @property
    def refused(self) -> float:
        """The share of requests that were refused."""
        return self.refusals / max(1, self.answers + self.refusals)

    @property
    def crowded(self) -> bool:
        """Whether the limit was what kept more requests from being sent."""
        return self.full * 2 >= self.answers


@dataclass(frozen=True, slots=True)
class MeasuredLimit:
    """A limit, and the answers that came while it held."""

    limit: int
    window: AnswerWindow


@dataclass(frozen=True, slots=True)
class Elasticity:
    """By which part of a raise of the limit the goodput rises: 1: fully, the upstream has room. 0: not at
    all, it queues. `error` is the standard error."""

    value: float
    error: float

    def surely_above(self, value: float) -> bool:
        return self.value - self.error > value

    def surely_below(self, value: float) -> bool:
        return self.value + self.error < value


def elasticity(low: MeasuredLimit, high: MeasuredLimit) -> Elasticity:
    a, b, raised = low.window, high.window, math.log(high.limit / low.limit)
    per_token, explained = _by_length(a, b)
    mean_tokens = (a.tokens + b.tokens) / (a.answers + b.answers)
    # Never zero or less, however far the line through lengths and latencies is off.
    before = max(a.mean - per_token * (a.tokens / a.answers - mean_tokens), a.mean / 10)
    after = max(b.mean - per_token * (b.tokens / b.answers - mean_tokens), b.mean / 10)
    gained = math.log(before / after) + math.log((1 - b.refused) / (1 - a.refused))
    noise = (a.spread**2 / a.answers + b.spread**2 / b.answers) * (1 - explained)
    noise += a.refused / a.answers + b.refused / b.answers
    return Elasticity(1 + gained / raised, math.sqrt(noise) / raised)


def _by_length(a: AnswerWindow, b: AnswerWindow) -> tuple[float, float]:
    """Seconds per token, and the share of the variance of latencies that lengths explain."""
    common = sum(w.tokens_seconds - w.tokens * w.mean for w in (a, b))
    lengths = sum(w.tokens_squared - w.tokens**2 / w.answers for w in (a, b))
    latencies = sum(w.seconds_squared - w.seconds * w.mean for w in (a, b))
    # With three answers or fewer, a line through them proves nothing.
    if lengths <= 1e-9 or latencies <= 1e-12 or a.answers + b.answers < 4:
        return 0.0, 0.0
    return common / lengths, min(1.0, common * common / lengths / latencies)

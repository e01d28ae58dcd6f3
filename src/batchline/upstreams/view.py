"""A view of an upstream at one moment, for displays and reports. Nothing decides by it."""

from collections import deque

import msgspec

# Quantiles are of so many answers.
_ANSWERS = 512


class Latencies:
    """Seconds that the last answers took. To add one costs no more than an append."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_ANSWERS)
        self.add = self._last.append

    def quantiles(self, *wanted: float) -> list[float | None]:
        """None if there was no answer yet."""
        ordered = sorted(self._last)
        if not ordered:
            return [None for _ in wanted]
        return [ordered[min(int(each * len(ordered)), len(ordered) - 1)] for each in wanted]


class LimitingBudget(msgspec.Struct, frozen=True):
    """A budget per minute that requests wait for."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    waiting: int
    # Until the next of them may be sent.
    seconds: float


class UpstreamView(msgspec.Struct, frozen=True):
    """Times are in seconds, as of the moment of the view."""

    # Without secrets.
    url: str
    # Requests that were sent and have no answer yet.
    in_flight: int
    # How many may be in flight now, and at most; `full`: all of these slots are taken.
    limit: int
    max_limit: int
    full: bool
    p50: float | None
    p95: float | None
    # How long ago the oldest request in flight was sent.
    oldest: float | None
    # Requests per second, while requests wait because the upstream refuses more.
    rate_limit: float | None = None
    # Until the next request may be sent, as the upstream requested.
    paused_for: float = 0.0
    # Since it became unavailable, until the next try.
    unavailable_for: float | None = None
    next_try: float = 0.0
    # Since the last request that failed because it is unavailable.
    last_try: float = 0.0
    # Why it is unavailable, and whether connections to it work nevertheless.
    reason: str = ""
    connects: bool = True
    # How often it crashed while requests were in flight, and lines that were in flight then and are not done.
    crashes: int = 0
    suspects: int = 0
    # Whether the limit is found by measuring, and what it follows now.
    auto: bool = False
    signal: str = ""
    # The signal's name, for programs.
    signal_label: str = ""
    # What requests wait for, if it is a budget.
    budget: LimitingBudget | None = None

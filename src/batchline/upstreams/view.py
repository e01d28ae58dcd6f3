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
    # Since the first connection that failed, until the next try.
    unreachable_for: float | None = None
    next_try: float = 0.0
    # Since the last connection that failed.
    last_try: float = 0.0
    reason: str = ""

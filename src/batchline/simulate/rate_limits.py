"""Limits of requests and tokens per time, with the headers that OpenAI sends about them."""

import math
from collections.abc import Callable

from batchline.simulate.faults import TokenBucket
from batchline.simulate.refusals import Refusal
from batchline.simulate.settings import SimulateSettings


class RateLimits:
    """A request passes both limits or uses none of them."""

    def __init__(self, settings: SimulateSettings, clock: Callable[[], float]) -> None:
        per_second = {"requests": settings.rate_limit, "tokens": settings.token_limit / 60}
        self._buckets = {what: TokenBucket(rate, clock) for what, rate in per_second.items() if rate}
        self._limits = {
            "requests": f"{settings.rate_limit:g} requests per second",
            "tokens": f"{settings.token_limit:g} tokens per minute",
        }

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def admit(self, tokens: int) -> None:
        """Raises Refusal, with the time to wait."""
        costs = {"requests": 1, "tokens": tokens}
        for what, bucket in self._buckets.items():
            if wait_s := bucket.missing_s(costs[what]):
                message = f"Rate limit reached: {self._limits[what]}."
                headers = b"Retry-After: %.3f\r\n%b" % (wait_s, self.headers())
                raise Refusal(429, message, type=what, code="rate_limit_exceeded", headers=headers)
        for what, bucket in self._buckets.items():
            bucket.take(costs[what])

    def headers(self) -> bytes:
        """Limits are per minute, as OpenAI's are. A reset is the time until nothing of the limit is used."""
        return "".join(
            f"x-ratelimit-limit-{what}: {math.floor(bucket.rate * 60 + 1e-6)}\r\n"
            f"x-ratelimit-remaining-{what}: {bucket.remaining}\r\n"
            f"x-ratelimit-reset-{what}: {_duration(bucket.full_in_s)}\r\n"
            for what, bucket in self._buckets.items()
        ).encode()


def _duration(seconds: float) -> str:
    """As Go writes it, without hours: 12ms, 3.25s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"

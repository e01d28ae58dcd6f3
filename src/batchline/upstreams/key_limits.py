"""How many requests may be in flight at one upstream, by routing key.

A number that is set holds for all keys together. What is found by measuring may differ from model to model.
"""

from collections.abc import Callable

from batchline.model.concurrency import AutoConcurrency
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.server_load import ServerLoad

# Limits that are remembered. Many more than routing keys can be open at once.
_MAX_LIMITS = 1_000


class KeyLimits:
    """A limit outlasts the producers that use it."""

    def __init__(self, concurrency: int, wall_clock: Callable[[], float]) -> None:
        self._concurrency = concurrency
        self._wall_clock = wall_clock
        # One for all, under the empty key, if the number is set.
        self._limits: dict[str, InFlightLimit] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def get(self, key: str) -> InFlightLimit:
        """The limit of requests for one routing key."""
        if not isinstance(self._concurrency, AutoConcurrency):
            key = ""
        limit = self._limits.pop(key, None)
        if limit is None:
            self._forget_unused()
            limit = InFlightLimit(self._concurrency, self._wall_clock)
        # The one that was asked for last comes last.
        self._limits[key] = limit
        return limit

    def in_use(self) -> list[InFlightLimit]:
        """Those that requests are in flight under; if there are none, that of requests without a key."""
        return [each for each in self._limits.values() if each.in_flight] or [self.get("")]

    def resize(self, concurrency: int) -> None:
        """So many requests may be in flight from now on."""
        self._concurrency = concurrency
        for limit in self._limits.values():
            limit.resize(concurrency)

    def may_fall(self, key: str) -> bool:
        """Whether the limit of requests with this routing key is found by measuring, and can still fall."""
        limit = self._limits.get(key) or self._limits.get("")
        return limit is not None and limit.auto and limit.value > 1

    @property
    def follow_load(self) -> bool:
        """Whether one of them could change by what runs and waits at the upstream."""
        return any(limit.auto for limit in self._limits.values())

    def loaded(self, now: float, load: ServerLoad) -> None:
        """Note what runs and waits at the upstream by its own account."""
        for limit in self._limits.values():
            limit.loaded(now, load)

    def _forget_unused(self) -> None:
        """Those that nothing is in flight under, from the oldest on: batches name any number of models."""
        unused = [key for key, limit in self._limits.items() if not limit.in_flight]
        for key in unused[: max(len(self._limits) - _MAX_LIMITS + 1, 0)]:
            del self._limits[key]

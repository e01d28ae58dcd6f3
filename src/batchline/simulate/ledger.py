"""What the upstream did: its counts, and for each Idempotency-Key what came of it.

POST /reset opens a new ledger. What began under the old one is still entered there, and so counted nowhere.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from batchline.simulate.recipes import Recipe

_LINES_A_CHUNK = 1000


class Executed(NamedTuple):
    key: str | None
    path: str
    sha256: str
    """Of the body, as hex."""


class Ledger:
    def __init__(self, max_keys: int) -> None:
        self.requests = 0
        self.replays = 0
        self.by_status: dict[int, int] = {}
        self.peak_in_flight = 0
        self._executed = 0
        self._keys_executed = 0
        self._keys_executed_twice = 0
        self._max_keys = max_keys
        self._recipes: dict[bytes, Recipe] = {}
        # Oldest first, beside the dict: finding a dict's first key is O(n) once many were deleted before it.
        self._ages: deque[bytes] = deque()
        self._records: list[Executed] = []

    def recipe_of(self, key: bytes) -> Recipe | None:
        """What the key's one execution answered, or None if it has not run to its end."""
        return self._recipes.get(key)

    def enter(self, key: bytes | None, recipe: Recipe, record: Executed | None) -> None:
        """Enter one execution that ran to its end."""
        self._executed += 1
        if record is not None:
            self._records.append(record)
        if key is None:
            return
        if key in self._recipes:
            self._keys_executed_twice += 1
            return
        self._keys_executed += 1
        self._recipes[key] = recipe
        self._ages.append(key)
        if len(self._ages) > self._max_keys:
            del self._recipes[self._ages.popleft()]

    def report(self, in_flight: int) -> dict[str, int | dict[int, int]]:
        """What GET /stats shows. `distinct_keys` are keys executed; `in_flight` is what executes, not what
        queues or hangs; `by_status` counts the answers to POST requests, which those dropped do not get."""
        return {
            "requests": self.requests,
            "executed": self._executed,
            "distinct_keys": self._keys_executed,
            "replays": self.replays,
            "by_status": self.by_status,
            "in_flight": in_flight,
            "peak_in_flight": self.peak_in_flight,
            "keys_executed_twice": self._keys_executed_twice,
        }

    def record_chunks(self) -> Iterator[bytes]:
        """The executions up to now, as JSON lines, some at a time."""
        records = islice(self._records, len(self._records))
        while chunk := list(islice(records, _LINES_A_CHUNK)):
            yield msgspec.json.Encoder().encode_lines([record._asdict() for record in chunk])

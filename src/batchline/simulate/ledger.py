"""Counts of the upstream, and the result for each Idempotency-Key.

POST /reset opens a new ledger. Requests that began before are entered in the old one, and so are not counted.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from batchline.simulate.recipes import Recipe

_LINES_PER_CHUNK = 1000


class Executed(NamedTuple):
    key: str | None
    path: str
    sha256: str
    """Of the body, in hexadecimal."""


class Ledger:
    def __init__(self, max_keys: int) -> None:
        self.requests = 0
        self.replays = 0
        self.by_status: dict[int, int] = {}
        self.peak_in_flight = 0
        self.refused_late = 0
        # Counted with a prefix cache only.
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._executed = 0
        self._keys_executed = 0
        self._keys_executed_twice = 0
        self._max_keys = max_keys
        self._recipes: dict[bytes, Recipe] = {}
        # Oldest first. Finding the first key of a dict is O(n) after many deletions.
        self._ages: deque[bytes] = deque()
        self._records: list[Executed] = []

    def recipe_of(self, key: bytes) -> Recipe | None:
        """The result of the key's execution; None if it has not ended."""
        return self._recipes.get(key)

    def enter(self, key: bytes | None, recipe: Recipe, record: Executed | None) -> None:
        """Enter one execution that has ended."""
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

    def report(self, in_flight: int, waiting: int) -> dict[str, int | dict[int, int]]:
        """The answer to GET /stats. `distinct_keys` counts executed keys; `in_flight` counts executing
        requests, not hanging ones, and `waiting` queued ones; `by_status` counts answers to POST requests,
        without dropped ones."""
        return {
            "requests": self.requests,
            "executed": self._executed,
            "distinct_keys": self._keys_executed,
            "replays": self.replays,
            "by_status": self.by_status,
            "in_flight": in_flight,
            "peak_in_flight": self.peak_in_flight,
            "waiting": waiting,
            "refused_late": self.refused_late,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "keys_executed_twice": self._keys_executed_twice,
        }

    def record_chunks(self) -> Iterator[bytes]:
        """The executions so far, as JSON lines, in chunks."""
        records = islice(self._records, len(self._records))
        while chunk := list(islice(records, _LINES_PER_CHUNK)):
            yield msgspec.json.Encoder().encode_lines([record._asdict() for record in chunk])

"""The upstream's own record: for every Idempotency-Key what was sent under it and what came of it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Event(StrEnum):
    """What became of a request that carried the key."""

    ANSWERED = "answered"
    HUNG = "hung"
    DROPPED = "dropped"
    LATE = "late"
    """Answered after its time limit."""
    OVERSIZED = "oversized"
    """Answered with far more bytes than others."""


@dataclass(slots=True)
class Entry:
    """One key. Requests under it may be many; runs must not be."""

    body: bytes
    requests: int = 0
    runs: int = 0
    # Runs that the upstream owed nobody: it had been told to forget that the key had run.
    forgotten: int = 0
    # Requests under this key whose body was another one.
    strange: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    events: Counter[Event] = field(default_factory=Counter)

    @property
    def twice(self) -> bool:
        """Run more than once, and not because the upstream broke its own rule."""
        return self.runs - self.forgotten > 1

    @property
    def spent(self) -> bool:
        """The upstream gave a reason for another attempt: an error that passes, silence, or a broken line."""
        passing = any(status in (429, 500, 503) for status in self.statuses)
        return passing or any(self.events[event] for event in (Event.HUNG, Event.DROPPED, Event.LATE))


class Ledger:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def request(self, key: str, body: bytes) -> Entry:
        entry = self.entries.setdefault(key, Entry(body))
        entry.requests += 1
        entry.strange += entry.body != body
        return entry

    def forget_round(self) -> None:
        """What was checked need not be kept."""
        self.entries.clear()

"""The upstream's ledger: for every Idempotency-Key, the requests it received and their outcomes."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class LedgerEvent(StrEnum):
    """The outcome of a request."""

    ANSWERED = "answered"
    HUNG = "hung"
    DROPPED = "dropped"
    LATE = "late"
    """Answered so late that its client may have given up, or the client left after as long."""
    OVERSIZED = "oversized"
    """Answered with far more bytes than others."""


_SPENDING = (LedgerEvent.HUNG, LedgerEvent.DROPPED, LedgerEvent.LATE, LedgerEvent.OVERSIZED)


@dataclass(slots=True)
class LedgerEntry:
    """One key. It may have many requests, but only one run."""

    body: bytes
    requests: int = 0
    runs: int = 0
    # Repeated runs caused by a fault that made the upstream forget the key.
    forgotten: int = 0
    # Requests under this key with a different body.
    strange: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    events: Counter[LedgerEvent] = field(default_factory=Counter)

    @property
    def twice(self) -> bool:
        """Whether the key ran more than once, not counting the upstream's own fault."""
        return self.runs - self.forgotten > 1

    @property
    def spent(self) -> bool:
        """Whether another attempt is justified: by a temporary error, no answer, a broken connection, or an
        answer that may take longer to read than the time limit."""
        passing = any(status in (429, 500, 503) for status in self.statuses)
        return passing or any(self.events[event] for event in _SPENDING)


class RequestLedger:
    def __init__(self) -> None:
        self.entries: dict[str, LedgerEntry] = {}

    def request(self, key: str, body: bytes) -> LedgerEntry:
        entry = self.entries.setdefault(key, LedgerEntry(body))
        entry.requests += 1
        entry.strange += entry.body != body
        return entry

    def forget_round(self) -> None:
        """Delete the entries of the round that was checked."""
        self.entries.clear()

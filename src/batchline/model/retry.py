"""A retry: which lines of an ended batch run again."""

from enum import StrEnum

import msgspec


class Unfinished(StrEnum):
    """How a line ended that has no completed answer."""

    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class RetrySelection(msgspec.Struct, frozen=True):
    """The lines to run again: those that ended in one of these ways, with one of these codes and causes.
    None: any."""

    only: frozenset[Unfinished] | None = None
    codes: tuple[str, ...] | None = None
    causes: tuple[str, ...] | None = None

    def includes(self, ending: Unfinished) -> bool:
        return self.only is None or ending in self.only

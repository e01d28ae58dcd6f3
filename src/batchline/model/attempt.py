"""An item with the history of its attempts."""

from datetime import datetime

import msgspec


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that failed and was followed by another, which may start at `not_before`."""

    attempt: int
    error_code: str
    message: str
    not_before: datetime
    created_at: datetime


class ItemHistory(msgspec.Struct, frozen=True):
    """An item, its state, and its failed attempts, oldest first."""

    custom_id: str
    line_no: int
    model: str
    # As in docs/reference/states.md.
    state: str
    # The current one, or the one that ended it.
    attempt: int
    # Since when a worker holds it.
    claimed_at: datetime | None
    # If it waits: until then.
    not_before: datetime | None
    status_code: int | None
    finished_at: datetime | None
    attempts: tuple[Attempt, ...]

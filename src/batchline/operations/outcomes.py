"""What a handler may do with an attempt, other than return a value: Retry, Fail and Parked."""

import math
from typing import Any

import msgspec

_MAX_DELAY = 366 * 86_400.0
_MAX_TASK_ID = 512


class Retry(Exception):
    """The attempt has failed. Another one follows after `after` seconds, or after the back-off."""

    # For subclasses that do not call `__init__`.
    reason: str = ""
    after: float | None = None

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = None if after is None else checked_delay(after)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its positional arguments only.
        return type(self), (self.reason,), {"after": self.after}


class Fail(Exception):
    """The item has failed for good. The code is that of a subclass: its name, unless one is given."""

    # For subclasses that do not call `__init__`.
    reason: str = ""
    code: str = ""

    def __init__(self, reason: str = "", *, code: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code or type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,), {"code": self.code}


class Parked(msgspec.Struct, frozen=True):
    """Another system works on the item as `task_id`. The handler is called again after `after` seconds."""

    task_id: str
    after: float = 30.0

    def __post_init__(self) -> None:
        checked_delay(self.after)
        if not isinstance(self.task_id, str) or not 0 < len(self.task_id) <= _MAX_TASK_ID:
            raise ValueError(f"task_id must be a string of 1 to {_MAX_TASK_ID} characters")
        if not self.task_id.isprintable():
            raise ValueError("task_id must have printable characters only")


def checked_delay(after: float) -> float:
    """The delay in seconds. Raises ValueError."""
    if not (isinstance(after, int | float) and math.isfinite(after) and 0 <= after <= _MAX_DELAY):
        raise ValueError(f"after must be a number of seconds from 0 to {_MAX_DELAY:g}, not {after!r}")
    return float(after)

"""Wait in a test until a fact holds."""

import time
from collections.abc import Callable
from typing import Any

LIMIT = 120.0


def wait_for(what: str, fact: Callable[[], Any], limit: float = LIMIT) -> Any:
    """The first true value of `fact`; fails with `what` was expected when it does not come."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if value := fact():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {limit:g} s in vain for: {what}")

"""Wait in a test until a fact holds."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

LIMIT = 120.0


def wait_for(what: str, fact: Callable[[], Any], limit: float = LIMIT, pause: float = 0.02) -> Any:
    """The first true value of `fact`; fails with `what` was expected when it does not come."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if value := fact():
            return value
        time.sleep(pause)
    raise AssertionError(f"waited {limit:g} s in vain for: {what}")


async def eventually(what: str, fact: Callable[[], Any], limit: float = LIMIT) -> Any:
    """The same, while the event loop runs."""
    try:
        async with asyncio.timeout(limit):
            while not (value := fact()):  # noqa: ASYNC110 (a fact has no event)
                await asyncio.sleep(0.005)
            return value
    except TimeoutError:
        raise AssertionError(f"waited {limit:g} s in vain for: {what}") from None

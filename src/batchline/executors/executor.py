"""The executor protocol: an item in, a verdict out.

The worker claims items and settles verdicts; an executor knows nothing of either.
"""

import random
from typing import Protocol

from batchline.batches.output import failed_line
from batchline.model import Failed, Item, Ran, Retried, Verdict
from batchline.upstreams.retry import Backoff, rounded_up

_RETRY = Backoff(minimum=0.5, maximum=60.0)


class Fence(Protocol):
    def __call__(self) -> object | None:
        """The name under which the worker holds its items now; None: its lease is lost, so send nothing."""
        ...


def no_fence() -> object:
    """For an executor outside a worker."""
    return True


class Executor(Protocol):
    """Only `run` is required of a class that inherits from this one."""

    async def run(self, item: Item) -> Ran:
        """Run the item once. Whatever goes wrong is a verdict on this item, or `TimedOut`; only cancellation
        is raised."""
        ...

    def fenced_by(self, fence: Fence) -> None:
        """Called once, before the first item. An executor that lets items wait before it sends them calls
        `fence` before and after the wait: if the name has changed, another worker may be running the item.
        """
        return

    def wind_down(self) -> None:
        """The worker stops: give back items that wait to be sent; items that were sent may finish."""
        return

    async def close(self) -> None:
        """Close connections. Nothing is run afterwards."""
        return


def unexpected(item: Item) -> Verdict:
    """The verdict on an item whose executor raised: another attempt, if one is left."""
    message = "The worker failed at this item; see its log."
    if item.claim.attempts_left:
        delay = rounded_up(_RETRY.delay(item.claim.attempt, random.random))
        return Retried(item, "internal_error", message, delay)
    return Failed(item, failed_line(item, "internal_error", message))

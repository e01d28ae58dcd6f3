"""What the worker asks of an executor."""

import random
from typing import Protocol

from batchline.batches.output import failed_line
from batchline.model import Failed, Item, Ran, Retry, Verdict
from batchline.upstreams.retry import Backoff, rounded_up

_RETRY = Backoff(minimum=0.5, maximum=60.0)


class Fence(Protocol):
    def __call__(self) -> object | None:
        """In whose name items are sent now; None: nothing may be sent any more."""
        ...


def no_fence() -> object:
    """For an executor that nobody has fenced."""
    return True


class Executor(Protocol):
    def fenced_by(self, fence: Fence) -> None:
        """An item may wait before it is sent: one that is not this worker's any more then is not sent."""
        ...

    async def run(self, item: Item) -> Ran:
        """Run the item once. Whatever goes wrong is a verdict on this item, or that it timed out; only
        cancellation is raised."""
        ...

    def wind_down(self) -> None:
        """The worker stops: what waits to be sent is given back, what was sent may finish."""
        ...

    async def close(self) -> None:
        """Let go of connections. Nothing is run afterwards."""
        ...


def unexpected(item: Item) -> Verdict:
    """The verdict on an item whose executor raised: another attempt, if one is left."""
    message = "The worker failed at this item; its log says why."
    if item.claim.attempt < item.claim.settings.max_attempts:
        delay = rounded_up(_RETRY.delay(item.claim.attempt, random.random))
        return Retry(item, "internal_error", message, delay)
    return Failed(item, failed_line(item, "internal_error", message))

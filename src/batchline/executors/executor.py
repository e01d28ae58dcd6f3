"""What the worker asks of an executor."""

from typing import Protocol

from batchline.model import Item, Ran


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

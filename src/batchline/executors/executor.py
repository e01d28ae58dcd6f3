"""What the worker asks of an executor."""

from typing import Protocol

from batchline.model import Item, Verdict


class Executor(Protocol):
    async def run(self, item: Item) -> Verdict:
        """Run the item once. Whatever goes wrong is a verdict on this item; only cancellation is raised."""
        ...

    def wind_down(self) -> None:
        """The worker stops: what waits to be sent is given back, what was sent may finish."""
        ...

    async def close(self) -> None:
        """Let go of connections. Nothing is run afterwards."""
        ...

"""How many items a worker may still claim in its life (`--max-items`)."""

import asyncio


class ItemBudget:
    """Shared by all claimers of a worker. `spent` is set when no more items may be claimed."""

    def __init__(self, maximum: int | None) -> None:
        self._left = maximum
        self.spent = asyncio.Event()

    def allowed(self, wanted: int) -> int:
        return wanted if self._left is None else min(wanted, self._left)

    def take(self, items: int) -> None:
        if self._left is not None:
            self._left = max(self._left - items, 0)
            if not self._left:
                self.spent.set()

    def put_back(self, items: int) -> None:
        """So many items were claimed and given back unsent."""
        if self._left is not None and items:
            self._left += items
            self.spent.clear()

"""What one producer has in flight, and how much more it may send.

A producer that shares its upstream with another one may hold as many items as if it were alone. The limit
itself counts what is sent.
"""

from batchline.model import Item
from batchline.upstreams.in_flight_limit import InFlightLimit


class Slots:
    """As many as the upstream's limit allows, which changes while requests run."""

    def __init__(self, limit: InFlightLimit) -> None:
        self.limit = limit
        self.running: dict[int, Item] = {}

    @property
    def free(self) -> int:
        """Negative while more is in flight than a lowered limit allows."""
        return self.limit.value - len(self.running)

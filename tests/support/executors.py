"""An executor without an upstream, for workers in the process of a test."""

from uuid import UUID

from batchline.batches.output import answered_line
from batchline.executors.executor import Fence
from batchline.model import Completed, Item, Verdict


class Answering:
    """Answers at once, and remembers what it was given: of which batch, which line."""

    def __init__(self) -> None:
        self.sent: list[tuple[UUID, int]] = []

    @property
    def lines(self) -> list[int]:
        """Their numbers, in order, each as often as it was sent."""
        return sorted(line_no for _, line_no in self.sent)

    async def run(self, item: Item) -> Verdict:
        self.sent.append((item.claim.batch_id, item.line_no))
        return Completed(item, 200, answered_line(item, 200, "r", b"{}"))

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return

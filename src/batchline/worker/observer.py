"""What a worker reports while it works. Metrics are one listener; by default nobody listens."""

from collections.abc import Sequence

from batchline.model import Verdict


class WorkerObserver:
    """Each method is called after the fact, in the event loop: it must be quick and must not fail."""

    def claim_ended(self, seconds: float, items: int) -> None:
        """A claim took so long and found so many items."""
        return

    def settle_ended(self, seconds: float, verdicts: Sequence[Verdict]) -> None:
        """These verdicts are stored, and it took so long."""
        return

    def lease_lost(self) -> None:
        """The worker could not renew its lease in time, and continues under a new name."""
        return

    def maintenance_found(self, kind: str, count: int) -> None:
        """Maintenance found so many things of this kind and repaired or removed them."""
        return

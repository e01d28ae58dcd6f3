"""Standing by: what the crews of an idle worker would take at once, and what is handed over because of it.

Whoever makes a batch claims its first lines for a worker that stands by, and tells it on its own channel.
"""

from collections.abc import Sequence

from batchline.config import WorkerSettings
from batchline.store.events import Handover
from batchline.store.spans import Scope, Standby, Standing
from batchline.worker.crew import Crew
from batchline.worker.lease import Lease
from batchline.worker.listener import Listener
from batchline.worker.strays import Strays


def stands_by(settings: WorkerSettings, scope: Scope) -> bool:
    """Whether a worker waits for work of any batch, and has no reason to leave."""
    return scope.batch_id is None and not settings.drain and settings.max_seconds is None


class Handovers:
    """`willing`: the worker may stand by."""

    def __init__(
        self, crews: Sequence[Crew], lease: Lease, listener: Listener, strays: Strays, *, willing: bool
    ) -> None:
        self._crews = crews
        self._lease = lease
        self._listener = listener
        self._strays = strays
        self.willing = willing

    def standing(self) -> Standing | None:
        """What there is to say now; None: the worker does not stand by."""
        channel = self._listener.channel
        if not self.willing or channel is None or self._lease.lost:
            return None
        standbys = tuple(
            Standby(post, room, crew.scope)
            for post, crew in enumerate(self._crews)
            if (room := crew.claimer.room())
        )
        return Standing(self._lease.worker, channel, self._lease.now(), standbys) if standbys else None

    def take_up(self, handover: Handover) -> bool:
        """Run what was handed over; False: it is not this worker's any more."""
        mine = handover.worker_id == self._lease.worker.id
        if not mine or not self._strays.may_take(handover.claim.span_id):
            return False
        if not self._lease.take_up(handover.said):
            self._strays.lost_track()
            return False
        self._crews[handover.post].claimer.take_up(handover.items)
        return True

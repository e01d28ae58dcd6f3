"""How long this worker may go on sending, and under which name.

The database's clock decides when others may take over; the worker measures by its own clock, from the
moment it asked for the last renewal that succeeded, and gives up well before. After that it takes a new
name: whatever the old one held is left to be taken.
"""

from datetime import timedelta
from uuid import UUID

from batchline.config import WorkerSettings
from batchline.ids import new_id
from batchline.store.spans import WorkerId
from batchline.worker.clock import Clock
from batchline.worker.kin import name_of_this_process


class Lease:
    def __init__(self, settings: WorkerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.worker = self._incarnation()
        # Nothing is held yet, so nothing can be lost; the first claim starts the time.
        self.ends = float("inf")

    def now(self) -> float:
        return self._clock()

    def renewed(self, asked_at: float) -> None:
        """A renewal that was asked for at `asked_at` has succeeded."""
        self.ends = asked_at + self._settings.fence_after

    def rest(self) -> None:
        """Nothing is held any more."""
        self.ends = float("inf")

    @property
    def lost(self) -> bool:
        return self._clock() >= self.ends

    def sender(self) -> UUID | None:
        """In whose name requests are sent now; None: in nobody's."""
        return None if self.lost else self.worker.id

    def start_over(self) -> None:
        """Go on under a new name."""
        self.worker = self._incarnation()
        self.rest()

    def _incarnation(self) -> WorkerId:
        return WorkerId(new_id(), name_of_this_process(), timedelta(seconds=self._settings.lease))

"""How long this worker may go on sending, and under which name.

The database's clock decides when others may take over; the worker measures by its own clock, from the
moment it asked for the last renewal that succeeded, and gives up well before. What is lost stays lost, even
if the database would still renew it: meanwhile others may have taken what this worker held. It lets go of all
that it has not sent and takes a new name.
"""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import structlog

from batchline.config.settings import WorkerSettings
from batchline.model.ids import new_id
from batchline.store.spans import WorkerId
from batchline.worker.clock import Clock
from batchline.worker.local_workers import name_of_this_process

_NEVER = float("inf")

_log = structlog.get_logger("batchline.lease")


class Lease:
    """`let_go` drops all that this worker holds and has not sent, and tells how much that was."""

    def __init__(self, settings: WorkerSettings, clock: Clock, let_go: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._let_go = let_go
        self.worker = self._incarnation()
        # Nothing is held yet, so nothing can be lost; the first claim starts the time.
        self.ends = _NEVER

    def now(self) -> float:
        return self._clock()

    def renewed(self, requested_at: float, left: float | None = None) -> None:
        """A renewal that was requested at `requested_at` has succeeded, or a claim, which renews the lease only
        after a third of it and returns how many seconds are `left`. It comes too late for a lost lease.
        """
        if not self.lost:
            used = 0.0 if left is None else self._settings.lease - left
            ends = requested_at - used + self._settings.fence_after
            self.ends = ends if self.ends == _NEVER else max(self.ends, ends)

    def rest(self) -> None:
        """Nothing is held any more."""
        self.ends = _NEVER

    @property
    def lost(self) -> bool:
        return self._clock() >= self.ends

    def sender(self) -> UUID | None:
        """In whose name requests are sent now; None: in nobody's."""
        return None if self.lost else self.worker.id

    def abandon(self) -> None:
        """Others may run what this worker holds: leave to them what was not sent, and go on under a new name.
        Answers still under way are brought in all the same; the first verdict on an item counts, whoever
        brings it.
        """
        _log.warning("lease lost, unsent items left to others", items=self._let_go())
        self.worker = self._incarnation()
        self.rest()

    def _incarnation(self) -> WorkerId:
        return WorkerId(new_id(), name_of_this_process(), timedelta(seconds=self._settings.lease))

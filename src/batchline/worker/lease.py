"""How long this worker may send, and under which name.

The database's clock decides when others may take over. The worker measures by its own clock, from the moment
it sent the last renewal that succeeded, and stops well before. A lost lease stays lost, even if the database
would still renew it: others may have taken what this worker held. The worker drops all items that it has not
sent, and continues under a new name.
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
    """`let_go` drops all items that this worker holds and has not sent, and returns how many. `on_lost` is
    called afterwards."""

    def __init__(
        self,
        settings: WorkerSettings,
        clock: Clock,
        let_go: Callable[[], int],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._let_go = let_go
        self._on_lost = on_lost
        self.worker = self._incarnation()
        # Nothing is held yet, so nothing can be lost; the first claim starts the time.
        self.ends = _NEVER

    def now(self) -> float:
        return self._clock()

    def renewed(self, requested_at: float, left: float | None = None) -> None:
        """A renewal that was sent at `requested_at` has succeeded, or a claim, which renews the lease only
        after a third of it and returns how many seconds are `left`. It comes too late for a lost lease.
        """
        if not self.lost:
            used = 0.0 if left is None else self._settings.lease - left
            ends = requested_at - used + self._settings.fence_after
            self.ends = ends if self.ends == _NEVER else max(self.ends, ends)

    def release(self) -> None:
        """Nothing is held."""
        self.ends = _NEVER

    @property
    def lost(self) -> bool:
        return self._clock() >= self.ends

    def sender(self) -> UUID | None:
        """The name under which requests are sent now; None: the lease is lost, so none may be sent."""
        return None if self.lost else self.worker.id

    def abandon(self) -> None:
        """Others may run what this worker holds: leave unsent items to them, and continue under a new name.

        Requests in flight are settled all the same: the first verdict on an item counts, from any worker.
        """
        _log.warning("lease lost, unsent items left to others", items=self._let_go())
        self.worker = self._incarnation()
        self.release()
        self._on_lost()

    def _incarnation(self) -> WorkerId:
        return WorkerId(new_id(), name_of_this_process(), timedelta(seconds=self._settings.lease))

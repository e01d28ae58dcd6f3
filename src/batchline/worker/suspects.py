"""Lines that were in flight when their upstream crashed, until the upstream may have them again.

They wait here, so they hold no slot and no other line waits behind them. A crash leaves as many suspects as
were in flight: those that find no room here are given back, to be claimed later. A line that must run alone
does not wait here, because no other worker runs one while this worker holds one. See upstreams/quarantine.py.
"""

import random
from collections import deque
from collections.abc import Callable
from uuid import UUID

from batchline.model import Deferred, Item
from batchline.store.errors import StatementRefused
from batchline.store.session import Session, StoreUnavailable
from batchline.store.suspects import held_elsewhere
from batchline.upstreams.quarantine import ALONE_FROM, Quarantine
from batchline.upstreams.retry import rounded_up
from batchline.worker.lease import Lease

MAX_WAITING = 64
# Seconds until a suspect that finds no room here may be claimed again. Those that must run alone are few.
_GIVEN_BACK_FOR = 15.0
_ALONE_GIVEN_BACK_FOR = 4.0


class Suspects:
    """Those of one producer. `give_back` takes what finds no room here; without it, any number waits."""

    def __init__(
        self,
        quarantine: Quarantine | None = None,
        give_back: Callable[[Deferred], None] | None = None,
    ) -> None:
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._on_room: Callable[[], None] | None = None
        self._give_back = give_back
        self.waiting: deque[Item] = deque()

    def open(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` whenever more of them may be sent, until `close`."""
        self._on_room = on_room
        self._quarantine.watch(on_room)

    def close(self) -> None:
        if self._on_room is not None:
            self._quarantine.unwatch(self._on_room)
            self._on_room = None

    def refuses(self, item: Item) -> bool:
        """Whether there is no room for it, so that it was given back."""
        if self._give_back is None:
            return False
        if item.claim.crashes >= ALONE_FROM:
            refused, seconds = self._quarantine.has_alone, _ALONE_GIVEN_BACK_FOR
        else:
            refused, seconds = len(self.waiting) >= MAX_WAITING, _GIVEN_BACK_FOR
        if refused:
            self._give_back(Deferred(item, rounded_up(seconds * random.uniform(0.5, 1.5))))
        return refused

    def arrived(self, item: Item) -> bool:
        """Whether it may be sent; otherwise it waits here."""
        if self._quarantine.admit(item.claim.crashes):
            return True
        self.waiting.append(item)
        self._quarantine.waiting += 1
        return False

    def ready(self) -> list[Item]:
        """Those that may be sent now."""
        waiting, self.waiting = self.waiting, deque()
        self._quarantine.waiting -= len(waiting)
        return [item for item in waiting if self.arrived(item)]

    def ended(self, item: Item) -> None:
        """A line that might be sent has ended, or was taken back."""
        self._quarantine.leave(item.claim.crashes)

    def discard(self, batch_id: UUID | None) -> list[Item]:
        """Take back what waits, all of it or that of one batch."""
        gone = [item for item in self.waiting if batch_id in (None, item.claim.batch_id)]
        self.waiting = deque(
            item for item in self.waiting if batch_id is not None and item.claim.batch_id != batch_id
        )
        self._quarantine.waiting -= len(gone)
        return gone


async def no_suspects_elsewhere(session: Session, lease: Lease) -> bool:
    """Whether no other worker holds a line that must run alone. If the database does not say, such a line
    must wait: a crash that another worker's line caused would be counted as its own."""
    try:
        return not await held_elsewhere(session, lease.worker.id, ALONE_FROM)
    except (StoreUnavailable, StatementRefused):
        return False

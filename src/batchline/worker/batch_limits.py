"""How many requests of one batch a producer may have in flight, if the batch has a limit of its own.

Lines of such a batch are admitted to the buffer as long as fewer of them are there or running. The others
wait here, and the producer claims no more of that batch meanwhile: lines of other batches have the free
slots.
"""

from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from batchline.model import Item
from batchline.upstreams.in_flight_limit import InFlightLimit


class _LimitedBatch:
    def __init__(self, limit: int, admitted: int) -> None:
        self.limit = limit
        self.admitted = admitted
        self.waiting: deque[Item] = deque()

    def admit(self) -> list[Item]:
        """The lines that may go to the buffer now."""
        ready = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.limit - self.admitted))]
        self.admitted += len(ready)
        return ready


class BatchLimits:
    """`on_room` is called when more lines of a batch may be claimed that were not wanted until now."""

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self._on_room = on_room
        self._batches: dict[UUID, _LimitedBatch] = {}

    @property
    def active(self) -> bool:
        """Whether any batch has a limit. Asked for every item."""
        return bool(self._batches)

    def limit_of(self, batch_id: UUID) -> int | None:
        limited = self._batches.get(batch_id)
        return None if limited is None else limited.limit

    @property
    def waiting(self) -> list[Item]:
        return [item for limited in self._batches.values() for item in limited.waiting]

    @property
    def full(self) -> tuple[UUID, ...]:
        """Batches of which no more lines are wanted."""
        return tuple(batch_id for batch_id, limited in self._batches.items() if limited.waiting)

    def change(self, batch_id: UUID, limit: int | None, unsent: Iterable[Item], running: int) -> list[Item]:
        """Set or remove a limit. `unsent` are the lines of the batch in the buffer; returns those that may
        stay there, and those that may go there."""
        before = self._batches.pop(batch_id, None)
        lines = [*unsent, *(before.waiting if before is not None else ())]
        if limit is None:
            admitted = lines
        else:
            limited = self._batches[batch_id] = _LimitedBatch(limit, running)
            limited.waiting.extend(lines)
            admitted = limited.admit()
        self._on_room()
        return admitted

    def arrived(self, item: Item) -> bool:
        """Whether the line may go to the buffer; otherwise it waits here."""
        limited = self._batches.get(item.claim.batch_id)
        if limited is None:
            return True
        if limited.admitted < limited.limit:
            limited.admitted += 1
            return True
        limited.waiting.append(item)
        return False

    def ended(self, item: Item) -> list[Item]:
        """A line has ended, or was taken back; the lines that may go to the buffer for it."""
        limited = self._batches.get(item.claim.batch_id)
        if limited is None:
            return []
        limited.admitted -= 1
        ready = limited.admit()
        if ready and not limited.waiting:
            self._on_room()
        if not limited.admitted:
            # The next claim brings the limit again.
            del self._batches[item.claim.batch_id]
        return ready

    def discard(self, batch_id: UUID | None) -> list[Item]:
        """Take back what waits, all of it or that of one batch."""
        gone: list[Item] = []
        for each, limited in self._batches.items():
            if batch_id in (None, each):
                gone += limited.waiting
                limited.waiting.clear()
        return gone


class OneBatchLimit(BatchLimits):
    """For a worker of one batch, which has all its slots. The limit of the batch is that of the slots, also
    if it is higher."""

    def __init__(self, slots: InFlightLimit, on_room: Callable[[], None]) -> None:
        super().__init__(on_room)
        self._slots = slots
        self._usual = slots.maximum
        self._limit: int | None = None

    def limit_of(self, batch_id: UUID) -> int | None:
        return self._limit

    def change(self, batch_id: UUID, limit: int | None, unsent: Iterable[Item], running: int) -> list[Item]:
        self._limit = limit
        self._slots.resize(limit or self._usual)
        self._on_room()
        return list(unsent)

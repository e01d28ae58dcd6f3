"""Claimed items that wait to be sent, and how many more to claim.

The buffer holds about two seconds of work at the measured rate, so a worker with a slow upstream
holds little, and one with a fast upstream never waits for a claim. It also bounds the bytes of requests,
including those in flight: while there are too many, it asks for no more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from batchline.config.settings import WorkerSettings
from batchline.model import Item
from batchline.upstreams.memory import BodyMemory
from batchline.worker.batch_limits import BatchLimits
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots
from batchline.worker.suspects import Suspects
from batchline.worker.tenant_gates import TenantGates

# One fetch brings no more than this: while it is read, it is in memory twice.
MAX_FETCH = 32 * 2**20


class Buffer:
    def __init__(
        self,
        settings: WorkerSettings,
        rate: Rate,
        slots: Slots,
        memory: BodyMemory,
        max_bytes: int,
        limits: BatchLimits | None = None,
        suspects: Suspects | None = None,
        gates: TenantGates | None = None,
    ) -> None:
        self._settings = settings
        self._rate = rate
        self._slots = slots
        self._memory = memory
        self._max_bytes = max_bytes
        self.limits = BatchLimits() if limits is None else limits
        self._suspects = Suspects() if suspects is None else suspects
        self._suspects.open(self._send_suspects)
        self.gates = TenantGates() if gates is None else gates
        self.gates.open(self._send_gated)
        # Of items that wait or run.
        self._bytes = 0
        # No more items are wanted until there is room for so many bytes.
        self._needed = 1.0
        self._short = False
        self._items: deque[Item] = deque()
        # The result says whether an item may be here; False: the taker is not needed any more.
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._refill = asyncio.Event()
        self._refill.set()
        self._low = 0
        self._average_size = 0.0
        self.closed = False
        # Called when items arrive.
        self.on_put: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        waiting = len(self.limits.waiting) if self.limits.active else 0
        gated = len(self.gates.waiting) if self.gates.active else 0
        return len(self._items) + waiting + len(self._suspects.waiting) + gated

    @property
    def takers(self) -> int:
        """How many takers wait."""
        return len(self._waiters)

    def put(self, items: Iterable[Item], left_out: Sequence[Item] = ()) -> None:
        """Take items in. `left_out` came without bodies; their sizes say how much room the next items
        need."""
        arrived = list(items)
        if arrived:
            self.on_put()
        size = sum(len(item.body) for item in arrived)
        self._hold(size)
        sizes = [item.left_out for item in left_out]
        if arrived or sizes:
            self._average_size = (size + sum(sizes)) / (len(arrived) + len(sizes))
        self._needed = max(self._average_size, min(sizes, default=1))
        self._admit(arrived)
        self._low = self._target() // 2
        if len(self._items) > self._low:
            self._refill.clear()
        self._wake(len(self._items))

    def _admit(self, arrived: Sequence[Item]) -> None:
        """A claim brings the limit of its batch, which may have changed."""
        claim = None
        for item in arrived:
            if item.claim is not claim:
                claim = item.claim
                if claim.concurrency != self.limits.limit_of(claim.batch_id):
                    self.change_limit(claim.batch_id, claim.concurrency)
            if claim.crashes and not self._is_sendable(item):
                continue
            if self.gates.active and not self._passes_gate(item):
                continue
            if not self.limits.active or self.limits.arrived(item):
                self._items.append(item)

    def _is_sendable(self, suspect: Item) -> bool:
        """Whether a line may be sent that was in flight at a crash. Otherwise it waits, or is given back."""
        if not self._suspects.refuses(suspect):
            return self._suspects.arrived(suspect)
        self._hold(-len(suspect.body))
        return False

    def _passes_gate(self, item: Item) -> bool:
        """Whether a line may be sent whose tenant has a budget. Otherwise it waits, or is given back."""
        if not self.gates.refuses(item):
            return self.gates.arrived(item)
        self._hold(-len(item.body))
        if item.claim.crashes:
            self._suspects.ended(item)
        return False

    def _send_gated(self, ready: list[Item]) -> None:
        for item in ready:
            if not self.limits.active or self.limits.arrived(item):
                self._items.append(item)
        self._wake(len(self._items))

    def _send_suspects(self) -> None:
        """First, since the others have time: they are known to crash nothing."""
        for item in self._suspects.ready():
            if not self.limits.active or self.limits.arrived(item):
                self._items.appendleft(item)
        self._wake(len(self._items))

    def change_limit(self, batch_id: UUID, limit: int | None) -> None:
        """A batch has another concurrency from now on; None: no limit. Requests in flight may finish."""
        unsent = [item for item in self._items if item.claim.batch_id == batch_id]
        running = sum(item.claim.batch_id == batch_id for item in self._slots.running.values())
        kept = [item for item in self._items if item.claim.batch_id != batch_id]
        self._items = deque([*kept, *self.limits.change(batch_id, limit, unsent, running)])
        self._refill.set()
        self._wake(len(self._items))

    def batch_limits(self) -> dict[UUID, int | None]:
        """The batches of all items that wait or run, with the limit that is known of each."""
        items = (*self._unsent, *self._slots.running.values())
        return {id: self.limits.limit_of(id) for id in {item.claim.batch_id for item in items}}

    async def take(self) -> Item | None:
        """The next item; None when the buffer is closed, or the taker is dismissed."""
        while (item := self.pop()) is None and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._refill.set()
            if not await waiter:
                return None
        return item

    def pop(self) -> Item | None:
        """The next item, if one is here."""
        items = self._items
        if not items:
            return None
        item = items.popleft()
        if len(items) <= self._low:
            self._refill.set()
        return item

    def spans(self) -> set[int]:
        return {item.claim.span_id for item in self._unsent}

    @property
    def _unsent(self) -> list[Item]:
        return [*self._items, *self.limits.waiting, *self._suspects.waiting, *self.gates.waiting]

    async def needs_refill(self) -> None:
        """Wait until more is wanted."""
        await self._refill.wait()

    @property
    def refilling(self) -> bool:
        """Whether more is wanted now."""
        return self._refill.is_set()

    def done(self, item: Item) -> None:
        """Note that an item has ended."""
        self._hold(-len(item.body))
        if item.claim.crashes:
            self._suspects.ended(item)
        if self.gates.active:
            self.gates.ended(item)
        if self.limits.active:
            self._items.extend(self.limits.ended(item))
            self._wake(len(self._items))
        if (self._short and self._has_room) or (self._waiters and not self._items):
            # A taker that waits has asked before. More may have been in flight then than its limit allowed,
            # and nobody asks again for runners that end because of that.
            self._refill.set()

    def wanted(self) -> int:
        """How many more items to claim: for the free slots and for some time ahead, if their bytes fit."""
        wanted = max(self._slots.free + self._target() - len(self._items), 0)
        self._short = wanted > 0 and not self._has_room
        if self._short:
            return 0
        if wanted and self._average_size:
            wanted = min(wanted, max(1, int(min(self._room, MAX_FETCH) / self._average_size)))
        return wanted

    def room_for(self, count: int) -> int | None:
        """The bytes that so many items may have. None: any. An item that finds nothing else here always runs,
        however large it is."""
        if count == 1:
            return self._room if self._bytes else None
        return min(self._room, MAX_FETCH)

    @property
    def _room(self) -> int:
        return max(min(self._max_bytes - self._bytes, self._memory.room_for_requests), 0)

    @property
    def _has_room(self) -> bool:
        return not self._bytes or self._room >= self._needed

    def _hold(self, size: int) -> None:
        self._bytes += size
        self._memory.held_requests += size

    def mark_full(self) -> None:
        """Ask for no more items now."""
        self._refill.clear()

    def discard(self, batch_id: UUID | None = None) -> list[Item]:
        """Take back what was not sent, all of it or that of one batch."""
        held_up = self.limits.discard(batch_id)
        unsent = [item for item in self._items if batch_id is None or item.claim.batch_id == batch_id]
        for item in unsent:
            self.limits.ended(item)
        waiting, gated = self._suspects.discard(batch_id), self.gates.discard(batch_id)
        gone = [*held_up, *unsent, *waiting, *gated]
        if gone:
            kept = [item for item in self._items if batch_id is not None and item.claim.batch_id != batch_id]
            self._items = deque(kept)
            self._hold(-sum(len(item.body) for item in gone))
            self._refill.set()
        for item in (*held_up, *unsent, *gated):
            if item.claim.crashes:
                self._suspects.ended(item)
        if self.gates.active:
            for item in (*held_up, *unsent):
                self.gates.ended(item)
        return gone

    def dismiss(self, maximum: int) -> int:
        """Stop waiting takers, up to a number; return how many."""
        return self._wake(maximum, needed=False)

    def close(self) -> None:
        """No more items will come: takers that find nothing get None."""
        self.closed = True
        self._suspects.close()
        self.gates.close()
        self._wake(len(self._waiters))

    def _target(self) -> int:
        """Items for two seconds; none while the rate is unknown. Fewer if bodies are large."""
        items = min(self._rate.per_second * self._settings.buffer_seconds, self._settings.buffer_max)
        if self._average_size:
            items = min(items, self._max_bytes / self._average_size)
        return int(items)

    def _wake(self, maximum: int, *, needed: bool = True) -> int:
        woken = 0
        while woken < maximum and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(needed)
                woken += 1
        return woken

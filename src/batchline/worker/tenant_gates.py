"""Lines of tenants that have a budget per minute, until the budget has room for them.

A line that waits for its tenant's budget holds a slot. So only as many of them are let through as the budget
allows within a quarter of a second; the others wait here, and the slots are free for other tenants. While
enough of them wait, their batches are not claimed from. Those that find no room here are given back.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from batchline.model import Deferred, Item
from batchline.upstreams.budget import Budget
from batchline.upstreams.rate_budgets import RateBudgets

# Let through: what the budget allows in so many seconds, but not more than so many lines.
_AHEAD = 0.25
_MAX_AHEAD = 16
# May wait: what the budget allows in so many seconds, at least and at most so many lines.
_WAITING = 2.0
_MIN_WAITING, _MAX_WAITING = 64, 2_000
# Lines that find no room come back after the time that the waiting lines need, within these bounds.
_MIN_DELAY, _MAX_DELAY = 1.0, 15.0

_Key: TypeAlias = tuple[int, int]


class _Gate:
    """That of one tenant."""

    def __init__(self, budgets: list[Budget]) -> None:
        per_minute = min((each.budget.requests for each in budgets if each.budget.requests), default=None)
        # Of tokens alone, nobody knows how many requests they are.
        self.per_second = _MAX_AHEAD / _AHEAD if per_minute is None else per_minute / 60
        self.ahead = min(max(math.ceil(self.per_second * _AHEAD), 1), _MAX_AHEAD)
        self.room = int(min(max(self.per_second * _WAITING, _MIN_WAITING), _MAX_WAITING))
        self.through: set[_Key] = set()
        self.waiting: deque[Item] = deque()

    @property
    def full(self) -> bool:
        return len(self.waiting) > self.room // 2

    @property
    def delay(self) -> float:
        return min(max(len(self.waiting) / self.per_second, _MIN_DELAY), _MAX_DELAY)


class TenantGates:
    """Those of one producer, for one upstream. `give_back` takes lines that find no room; `on_room` is called
    when batches may be claimed from again."""

    def __init__(
        self,
        budgets: RateBudgets | None = None,
        upstream: str = "",
        give_back: Callable[[Deferred], None] = lambda _: None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._budgets = budgets if budgets is not None and budgets.of_tenants else None
        self._upstream = upstream
        self._give_back = give_back
        self._on_room = on_room
        self._on_ready: Callable[[list[Item]], None] = lambda _: None
        self._gates: dict[str, _Gate] = {}
        # Whether any line must be looked at. An attribute, because it is read for every item.
        self.active = self._budgets is not None

    def open(self, on_ready: Callable[[list[Item]], None]) -> None:
        """Call `on_ready` with lines that may be sent now, until `close`."""
        self._on_ready = on_ready
        if self._budgets is not None:
            self._budgets.watch(self._passed)

    def close(self) -> None:
        if self._budgets is not None and self.active:
            self._budgets.unwatch(self._passed)
            self.active = False

    @property
    def waiting(self) -> list[Item]:
        return [item for gate in self._gates.values() for item in gate.waiting]

    @property
    def full(self) -> tuple[UUID, ...]:
        """Batches of which no more lines are wanted."""
        gates = [gate for gate in self._gates.values() if gate.full]
        return tuple({item.claim.batch_id for gate in gates for item in gate.waiting})

    def refuses(self, item: Item) -> bool:
        """Whether there is no room for it, so that it was given back."""
        gate = self._gate(item)
        if gate is None or len(gate.waiting) < gate.room:
            return False
        self._give_back(Deferred(item, gate.delay))
        return True

    def arrived(self, item: Item) -> bool:
        """Whether it may be sent; otherwise it waits here."""
        gate = self._gate(item)
        if gate is None:
            return True
        if len(gate.through) < gate.ahead:
            gate.through.add(_key(item))
            return True
        gate.waiting.append(item)
        return False

    def ended(self, item: Item) -> None:
        """A line has ended, or was taken back, whether it had reached its budget or not."""
        self._passed(item)

    def discard(self, batch_id: UUID | None) -> list[Item]:
        """Take back what waits, all of it or that of one batch."""
        gone: list[Item] = []
        was_full = self.full
        for gate in self._gates.values():
            gone += [item for item in gate.waiting if batch_id in (None, item.claim.batch_id)]
            gate.waiting = deque(
                item for item in gate.waiting if batch_id is not None and item.claim.batch_id != batch_id
            )
        if batch_id is not None and set(was_full) - {batch_id, *self.full}:
            # Other batches of the tenant were not wanted, and are now.
            self._on_room()
        return gone

    def _passed(self, item: Item) -> None:
        """A line has got its part of the budget: the next one may follow."""
        gate = self._gates.get(item.claim.tenant)
        if gate is None or _key(item) not in gate.through:
            return
        gate.through.remove(_key(item))
        was_full, ready = gate.full, list[Item]()
        while gate.waiting and len(gate.through) < gate.ahead:
            ready.append(gate.waiting.popleft())
            gate.through.add(_key(ready[-1]))
        if not gate.waiting and not gate.through:
            # As many tenants are remembered as have lines here.
            del self._gates[item.claim.tenant]
        if ready:
            self._on_ready(ready)
        if was_full and not gate.full:
            self._on_room()

    def _gate(self, item: Item) -> _Gate | None:
        """None: its tenant has no budget."""
        claim, budgets = item.claim, self._budgets
        gate = self._gates.get(claim.tenant)
        if gate is None and budgets is not None:
            found = budgets.of(self._upstream, claim.model, claim.tenant)
            own = [each for each in found if each.budget.scope.tenant is not None]
            if own:
                gate = self._gates[claim.tenant] = _Gate(own)
        return gate


def _key(item: Item) -> _Key:
    """The item may be copied on its way."""
    return item.claim.span_id, item.ordinal

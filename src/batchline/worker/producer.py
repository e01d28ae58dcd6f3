"""Claims, buffers and runs items for one scope.

A worker has one producer, or one for each routing key at each upstream. Each claims only what its own
upstream can take, so lines for a slow upstream never fill the slots of another. A producer consists of two
services, because an error in a claim must not cancel requests in flight.
"""

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from batchline.model import Deferred, Item
from batchline.store.spans import Scope
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.upstream import Upstream
from batchline.worker.batch_limits import BatchLimits, OneBatchLimit
from batchline.worker.buffer import Buffer
from batchline.worker.claimer import Claimer, Intake
from batchline.worker.context import ProducerContext
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots
from batchline.worker.suspects import Suspects, no_suspects_elsewhere
from batchline.worker.tenant_gates import TenantGates

# Items of another producer's claim that wait here although there is no room.
_MAX_WAITING = 64


class ProducerScope(msgspec.Struct, frozen=True):
    """What a producer works on, how many items at once, and at which upstream, if it is one."""

    scope: Scope
    concurrency: int
    upstream: str | None = None
    # Tasks that the upstream may have at once; None: it is not a provider.
    max_tasks: int | None = None
    # Its limit is that of one model at the upstream; None: of the whole upstream.
    model: str | None = None
    # The upstream's name in the settings; None: a batch names it.
    name: str | None = None
    # Its share, if several upstreams serve the same lines; 0: only while no other is available.
    weight: int = 1
    # Others may run lines that it may have run.
    fail_over: bool = False
    # It takes only lines of batches near their deadline.
    escalation: bool = False


class ProducersOfKey(Protocol):
    """The producers that serve the same lines, as one of them sees them."""

    def intake(self, producer: "Producer") -> Intake:
        """Where its claims go."""
        ...

    def refresh(self) -> None:
        """Its upstream became available or unavailable, or it has other batches near their deadline."""
        ...

    def nothing_found(self) -> None:
        """A claim found nothing, or the last item is done."""
        ...


class Producer:
    """`active`: it claims. Its group decides that."""

    def __init__(
        self,
        context: ProducerContext,
        of: ProducerScope,
        limit: InFlightLimit,
        group: ProducersOfKey,
        upstream: Upstream | None = None,
    ) -> None:
        self.of = of
        self.scope = of.scope
        self.max_tasks = of.max_tasks
        # Batches near their deadline, if it is for escalations, from the one to claim from on.
        self.escalated: deque[UUID] = deque()
        # How many of them had no line left, one after the other.
        self._misses = 0
        self._limit = limit
        self._upstream = upstream
        self._settler = context.settler
        self._group = group
        rate, slots = Rate(context.clock), Slots(limit)
        whole = of.scope.batch_id is None
        limits = BatchLimits(self._has_room) if whole else OneBatchLimit(limit, self._has_room)
        suspects = Suspects(None if upstream is None else upstream.quarantine, context.settler.add)
        if upstream is not None:
            upstream.quarantine.is_ours = partial(no_suspects_elsewhere, context.session, context.lease)
        self._rates = context.rates
        gates = self._tenant_gates()
        max_bytes = context.max_request_bytes
        self.buffer = Buffer(
            *(context.settings, rate, slots, context.memory, max_bytes), limits, suspects, gates
        )
        self.dispatcher = Dispatcher(context, self.buffer, slots, rate, self._empty)
        self.claimer = Claimer(context, self._wanted, group.intake(self), self._nothing_found, of.max_tasks)

    @property
    def available(self) -> bool:
        return self._upstream is None or self._upstream.available

    @property
    def rest(self) -> float:
        """How long a line should wait that its upstream cannot take now."""
        return 0.0 if self._upstream is None else self._upstream.rest

    @property
    def on_trial(self) -> bool:
        """Whether its upstream was away until now, and a line must show that it is back."""
        return self._upstream is not None and self._upstream.on_trial

    @property
    def active(self) -> bool:
        return not self.claimer.paused

    @property
    def wants_lines(self) -> bool:
        """Whether it is about to claim, as far as there is work."""
        return self.active and not self.claimer.idle.is_set() and self.buffer.refilling

    def set_active(self, active: bool) -> None:
        if active:
            self.claimer.resume()
            return
        self.claimer.pause()
        if not self.available:
            self.dispatcher.give_back()

    def escalate(self, batch_ids: Sequence[UUID]) -> None:
        """Take lines of these batches alone, until others are named."""
        self.escalated = deque(batch_ids)
        self._misses = 0
        self._group.refresh()
        self.claimer.wake()

    def watch(self) -> None:
        """Notice when the upstream becomes unavailable, until `unwatch`."""
        if self._upstream is not None:
            self._upstream.watch(self._group.refresh)

    def unwatch(self) -> None:
        if self._upstream is not None:
            self._upstream.unwatch(self._group.refresh)

    @property
    def holding(self) -> bool:
        return bool(self.held)

    @property
    def held(self) -> int:
        """Items that wait or are sent."""
        return len(self.buffer) + self.dispatcher.in_flight

    @property
    def limit(self) -> InFlightLimit:
        """How many requests it may have in flight."""
        return self._limit

    @property
    def slowed(self) -> bool:
        """Whether its upstream refuses requests, cannot be reached, or answered too late, or requests wait
        for their budget. More workers would not help."""
        upstream = self._upstream
        limited = upstream is not None and (
            upstream.limited or self._rates.limiting(upstream.url) is not None
        )
        return limited or self._limit.reached

    @property
    def outage(self) -> str | None:
        """Why its upstream cannot be connected to; None: it can."""
        return None if self._upstream is None else self._upstream.outage

    def running(self) -> Collection[Item]:
        """Items that are sent, or wait for a slot."""
        return self.dispatcher.running

    @property
    def idle(self) -> bool:
        return not self.holding and self.claimer.idle.is_set()

    def spans(self) -> set[int]:
        return self.buffer.spans() | self.dispatcher.spans()

    def accept(self, items: Sequence[Item], left_out: Sequence[Item] = (), delay: float = 0.0) -> None:
        """Take items that were claimed for this producer, as far as there is room; give back the rest, to be
        claimed after this delay."""
        room = max(self.buffer.wanted(), _MAX_WAITING - len(self.buffer) if delay else 0)
        self.buffer.put(items[:room], left_out)
        for item in items[room:]:
            self._settler.add(Deferred(item, delay))

    def _tenant_gates(self) -> TenantGates:
        if self._upstream is None:
            return TenantGates()
        return TenantGates(self._rates, self._upstream.url, self._settler.add, self._has_room)

    def _wanted(self) -> Scope:
        """The scope, without batches of which enough lines wait."""
        full = self.buffer.limits.full
        if self.buffer.gates.active:
            full = (*full, *self.buffer.gates.full)
        scope = replace(self.scope, batch_id=self.escalated[0]) if self.escalated else self.scope
        return replace(scope, without=full) if full else scope

    def _has_room(self) -> None:
        """More lines of a batch may be sent than before."""
        self.dispatcher.add_runners()
        self.claimer.wake()

    def _nothing_found(self) -> None:
        """A claim found nothing, and the claimer was not woken since."""
        if self.escalated and self.active:
            self.escalated.rotate(-1)
            self._misses = (self._misses + 1) % len(self.escalated)
            if self._misses:
                self.claimer.wake()
        self._group.nothing_found()

    def _empty(self) -> None:
        """The last item is done. No more verdicts are coming: settle now."""
        self._settler.wake()
        self._group.nothing_found()

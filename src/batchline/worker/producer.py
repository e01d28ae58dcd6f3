"""Claims, buffers and runs items for one scope.

A worker has one producer, or one for each upstream. Each claims only what its own upstream can take, so lines
for a slow upstream never fill the slots of another. A producer consists of two services, because an error in
a claim must not cancel requests in flight.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from batchline.model import Deferred, Item
from batchline.store.spans import Scope
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.upstream import Upstream
from batchline.worker.batch_limits import BatchLimits, OneBatchLimit
from batchline.worker.buffer import Buffer
from batchline.worker.claimer import Claimer
from batchline.worker.context import ProducerContext
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots


class ProducerScope(msgspec.Struct, frozen=True):
    """What a producer works on, how many items at once, and at which upstream, if it is one."""

    scope: Scope
    concurrency: int
    upstream: str | None = None
    # Tasks that the upstream may have at once; None: it is not a provider.
    max_tasks: int | None = None


class Producer:
    """`on_idle` is called when it holds nothing and a claim has found nothing."""

    def __init__(
        self,
        context: ProducerContext,
        scope: Scope,
        limit: InFlightLimit,
        on_idle: Callable[["Producer"], None] | None = None,
        max_tasks: int | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.scope = scope
        self._limit = limit
        self._upstream = upstream
        self.max_tasks = max_tasks
        self._settler = context.settler
        self._on_idle = on_idle
        rate, slots = Rate(context.clock), Slots(limit)
        limits = (
            BatchLimits(self._has_room) if scope.batch_id is None else OneBatchLimit(limit, self._has_room)
        )
        self.buffer = Buffer(context.settings, rate, slots, context.memory, context.max_request_bytes, limits)
        self.dispatcher = Dispatcher(context, self.buffer, slots, rate, self._empty)
        self.claimer = Claimer(context, self._wanted, self.buffer, self._nothing_found, max_tasks)

    @property
    def holding(self) -> bool:
        return bool(len(self.buffer) or self.dispatcher.in_flight)

    @property
    def slowed(self) -> bool:
        """Whether its upstream refuses requests, cannot be reached, or answered too late."""
        limited = self._upstream is not None and self._upstream.limited
        return limited or self._limit.value < self._limit.maximum

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

    def accept(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        """Take items that were claimed for this producer, as far as there is room; give back the rest."""
        room = self.buffer.wanted()
        self.buffer.put(items[:room], left_out)
        for item in items[room:]:
            self._settler.add(Deferred(item))

    def _wanted(self) -> Scope:
        """The scope, without batches of which enough lines wait."""
        full = self.buffer.limits.full
        return replace(self.scope, without=full) if full else self.scope

    def _has_room(self) -> None:
        """More lines of a batch may be sent than before."""
        self.dispatcher.add_runners()
        self.claimer.wake()

    def _nothing_found(self) -> None:
        """A claim found nothing, and the claimer was not woken since."""
        if self._on_idle is not None and not self.holding:
            self._on_idle(self)

    def _empty(self) -> None:
        """The last item is done. No more verdicts are coming: settle now."""
        self._settler.wake()
        if self._on_idle is not None and self.claimer.idle.is_set():
            self._on_idle(self)

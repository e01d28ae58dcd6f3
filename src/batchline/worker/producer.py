"""Those who work on one part of what there is: a claimer, its buffer, and the runners that empty it.

A worker has one producer, or one for each upstream. Each claims only what its own upstream can take, so a
slow one never fills the slots in which lines for another could be under way.
"""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.model import Deferred, Item
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.memory import BodyMemory
from batchline.worker.buffer import Buffer
from batchline.worker.claimer import Claimer
from batchline.worker.clock import Clock
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.lease import Lease
from batchline.worker.rate import Rate
from batchline.worker.reconciler import Reconciler
from batchline.worker.settler import Settler
from batchline.worker.slots import Slots


class ProducerScope(msgspec.Struct, frozen=True):
    """What a producer works on, how many items at once, and at which upstream, if it is one."""

    scope: Scope
    concurrency: int
    upstream: str | None = None


class Producer:
    """`on_idle` is called when it holds nothing and has looked for more in vain."""

    def __init__(
        self,
        scope: Scope,
        limit: InFlightLimit,
        session: Session,
        executor: Executor,
        settler: Settler,
        lease: Lease,
        settings: WorkerSettings,
        clock: Clock,
        claim_lock: asyncio.Lock,
        reconciler: Reconciler,
        memory: BodyMemory,
        max_request_bytes: int,
        on_idle: Callable[["Producer"], None] | None = None,
    ) -> None:
        self.scope = scope
        slots = Slots(limit)
        self._settler = settler
        self._on_idle = on_idle
        rate = Rate(clock)
        self.buffer = Buffer(settings, rate, slots, memory, max_request_bytes)
        self.dispatcher = Dispatcher(executor, self.buffer, settler, lease, rate, slots, memory, self._empty)
        self.claimer = Claimer(
            session,
            lease,
            lambda: scope,
            self.buffer,
            claim_lock,
            reconciler,
            settler.add,
            self._nothing_found,
        )

    @property
    def holding(self) -> bool:
        return bool(len(self.buffer) or self.dispatcher.in_flight)

    def spans(self) -> set[int]:
        return self.buffer.spans() | self.dispatcher.spans()

    def accept(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        """Take what another producer claimed for this one, as far as there is room; give back the rest."""
        room = self.buffer.wanted()
        self.buffer.put(items[:room], left_out)
        for item in items[room:]:
            self._settler.add(Deferred(item))

    def give_back(self, batch_id: UUID | None = None) -> None:
        """What was not sent, all of it or that of one batch."""
        for item in self.buffer.discard(batch_id):
            self._settler.add(Deferred(item))

    def _nothing_found(self) -> None:
        """A claim found nothing, and there has been no word of new work since."""
        if self._on_idle is not None and not self.holding:
            self._on_idle(self)

    def _empty(self) -> None:
        """The last item is done. No more verdicts are coming to wait for."""
        self._settler.flush()
        if self._on_idle is not None and not self.claimer.busy:
            self._on_idle(self)

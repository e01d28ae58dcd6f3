"""The producers of a worker: those that it was given, and one for each upstream that batches name.

Slots belong to an upstream. The upstreams of the settings are known at the start; others become known by a
claim. `UpstreamFinder` claims from upstreams that no producer works on, opens a producer for each that it
finds, and leaves that upstream to it. A producer that has nothing left to do is closed. So an idle worker has
none of them, and new work costs one claim, however many upstreams there have been.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol, overload

from msgspec.structs import replace

from batchline.model import Item
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.worker.buffer import MAX_FETCH
from batchline.worker.claimer import Claimer
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.supervisor import Services
from batchline.worker.tasks import cancel_all

# Each has slots of its own, so this bounds what is in flight. More upstreams wait until one has no work.
MAX_OPEN = 32
# Lines of the first claim from an upstream; its producer claims the others.
_FIRST_CLAIM = 64
# While producers are at work, another upstream is looked for no more often than this.
_LOOK_EVERY = 0.05


class Producers(Sequence[Producer]):
    """All producers of a worker: first those that last as long as it does, then those that come and go."""

    def __init__(self, lasting: Sequence[Producer]) -> None:
        self.lasting = tuple(lasting)
        self.finder: Claimer | None = None
        self._opened: dict[Producer, asyncio.Task[None]] = {}
        # By those that are closed.
        self._claimed = 0
        self._services: Services | None = None
        self._dispatch_failed: Callable[[], object] = lambda: None
        self._claim_failed: Callable[[], object] = lambda: None
        self._dispatching: list[asyncio.Task[None]] = []
        self._claiming: list[asyncio.Task[None]] = []

    @overload
    def __getitem__(self, index: int) -> Producer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Producer]: ...
    def __getitem__(self, index: int | slice) -> Producer | Sequence[Producer]:
        return (*self.lasting, *self._opened)[index]

    def __len__(self) -> int:
        return len(self.lasting) + len(self._opened)

    @property
    def claimers(self) -> list[Claimer]:
        claimers = [producer.claimer for producer in self]
        return claimers if self.finder is None else [*claimers, self.finder]

    @property
    def claimed(self) -> int:
        """Items, since the start."""
        return self._claimed + sum(claimer.claimed for claimer in self.claimers)

    @property
    def dispatching(self) -> list[asyncio.Task[None]]:
        """Tasks that end once their buffers are closed and what was sent is answered."""
        return list(self._dispatching)

    def start(
        self,
        services: Services,
        dispatch_failed: Callable[[], object],
        claim_failed: Callable[[], object],
    ) -> None:
        self._services = services
        self._dispatch_failed, self._claim_failed = dispatch_failed, claim_failed
        self._dispatching = [self._dispatch(services, producer) for producer in self.lasting]
        self._claiming = [self._claim(services, claimer) for claimer in self.claimers]

    def open(self, producer: Producer) -> None:
        """Add a producer that comes and goes."""
        assert self._services is not None, "not started"
        dispatching = self._dispatch(self._services, producer)
        dispatching.add_done_callback(self._dispatching.remove)
        self._dispatching.append(dispatching)
        self._opened[producer] = self._claim(self._services, producer.claimer)

    def close(self, producer: Producer) -> None:
        """Remove a producer that holds nothing and is not claiming."""
        claiming = self._opened.pop(producer)
        # It waits for word of new work, or is about to.
        claiming.cancel()
        producer.buffer.close()
        self._claimed += producer.claimer.claimed

    def _dispatch(self, services: Services, producer: Producer) -> asyncio.Task[None]:
        return services.start("dispatcher", producer.dispatcher.run, self._dispatch_failed)

    def _claim(self, services: Services, claimer: Claimer) -> asyncio.Task[None]:
        return services.start("claimer", claimer.run, self._claim_failed)

    async def stop_claiming(self) -> None:
        await cancel_all([*self._claiming, *self._opened.values()])


class OpenProducer(Protocol):
    def __call__(
        self, scope: Scope, limit: InFlightLimit, on_idle: Callable[[Producer], None]
    ) -> Producer: ...


class UpstreamFinder:
    """An intake for claims from upstreams that no producer works on.

    `producer_scope` is the scope of all such upstreams, and how many requests may be in flight at each.
    """

    def __init__(
        self,
        producer_scope: ProducerScope,
        producers: Producers,
        upstreams: Upstreams,
        make: OpenProducer,
    ) -> None:
        self._scope_of_producer = producer_scope
        self._producers = producers
        self._make = make
        self._open: dict[str, Producer] = {}
        self._upstreams = upstreams
        self._room = asyncio.Event()
        self._room.set()
        # The lines found last were too large to be read together.
        self._one_at_a_time = False

    def __len__(self) -> int:
        return 0

    def scope(self) -> Scope:
        return replace(
            self._scope_of_producer.scope, excluded=(*self._scope_of_producer.scope.excluded, *self._open)
        )

    async def needs_refill(self) -> None:
        await self._room.wait()
        if self._open:
            await asyncio.sleep(_LOOK_EVERY)

    def wanted(self) -> int:
        if len(self._open) >= MAX_OPEN:
            return 0
        return 1 if self._one_at_a_time else min(self._scope_of_producer.concurrency, _FIRST_CLAIM)

    def room_for(self, count: int) -> int | None:
        return None if count == 1 else MAX_FETCH

    def mark_full(self) -> None:
        self._room.clear()

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        self._one_at_a_time = bool(left_out) and not items
        for key, found in groupby(items, lambda item: item.claim.key):
            of_key = [item for item in left_out if item.claim.key == key]
            self._producer(key).accept(list(found), of_key)

    def _producer(self, key: str) -> Producer:
        producer = self._open.get(key)
        if producer is None:
            limit = self._upstreams.get(key, self._scope_of_producer.concurrency).limit
            producer = self._open[key] = self._make(Scope(keys=(key,)), limit, self._close)
            self._producers.open(producer)
        return producer

    def _close(self, producer: Producer) -> None:
        (key,) = producer.scope.keys or ()
        del self._open[key]
        self._producers.close(producer)
        self._room.set()

"""The producers of a worker: lasting ones, and one for each upstream that batches name.

Slots belong to an upstream. The upstreams of the settings are known at the start; others become known by a
claim. `UpstreamFinder` claims from upstreams that no producer works on, opens a producer for each that it
finds, and leaves that upstream to it. If a lasting producer sends to the same upstream, both share its slots.
A producer that has nothing left to do is closed, except that of a provider, which keeps to the limit of its
tasks. So an idle worker has few of them, and new work costs one claim, however many upstreams there were.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias, overload
from uuid import UUID

from msgspec.structs import replace

from batchline.model import RESERVED, Claim, Item
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.worker.buffer import MAX_FETCH
from batchline.worker.claimer import Claimer
from batchline.worker.context import ProducerContext
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.supervisor import Supervisor

# Each has its own slots, so this bounds what is in flight. More upstreams wait until one has no work.
MAX_OPEN = 32
# Lines of the first claim from an upstream; its producer claims the others.
_FIRST_CLAIM = 64
# While producers are at work, the finder claims no more often than this.
_LOOK_EVERY = 0.05


class Producers(Sequence[Producer]):
    """Permanent producers first, then temporary ones."""

    def __init__(self, context: ProducerContext, upstreams: Upstreams, supervisor: Supervisor) -> None:
        self._context = context
        self._upstreams = upstreams
        self._supervisor = supervisor
        self._lasting: list[Producer] = []
        self._opened: list[Producer] = []
        self._finder: Claimer | None = None
        # The URLs of lasting producers.
        self._known: set[str] = set()
        # By producers that are closed.
        self._claimed = 0

    @overload
    def __getitem__(self, index: int) -> Producer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Producer]: ...
    def __getitem__(self, index: int | slice) -> Producer | Sequence[Producer]:
        return [*self._lasting, *self._opened][index]

    def __len__(self) -> int:
        return len(self._lasting) + len(self._opened)

    @property
    def claimers(self) -> list[Claimer]:
        claimers = [producer.claimer for producer in self]
        return claimers if self._finder is None else [*claimers, self._finder]

    @property
    def dispatchers(self) -> list[Dispatcher]:
        return [producer.dispatcher for producer in self]

    @property
    def claimed(self) -> int:
        """Items, since the start."""
        return self._claimed + sum(claimer.claimed for claimer in self.claimers)

    def batch_limits(self) -> dict[UUID, int | None]:
        """The batches that lines are held of, with the concurrency that is known of each."""
        return {id: limit for producer in self for id, limit in producer.buffer.batch_limits().items()}

    def add(self, of: ProducerScope) -> None:
        """Add a producer that lasts. Call it before `start`."""
        upstream, limit = None, InFlightLimit(of.concurrency)
        if of.upstream is not None:
            upstream = self._upstreams.get(of.upstream, of.concurrency)
            limit = upstream.limit
            self._known.add(urls.normalized(of.upstream))
        producer = Producer(self._context, of.scope, limit, max_tasks=of.max_tasks, upstream=upstream)
        self._lasting.append(producer)

    def discover(self, of: ProducerScope) -> None:
        """Open a producer for each upstream in this scope, while it has work. Call it before `start`."""

        def opened(first: Claim, on_idle: OnIdle) -> Producer:
            # An upstream that a lasting producer sends to keeps its number of slots.
            url = first.key.removeprefix(RESERVED)
            concurrency = None if urls.normalized(url) in self._known else of.concurrency
            upstream = self._upstreams.get(url, concurrency)
            provider = first.settings.provider
            max_tasks = None if provider is None else provider.max_tasks
            scope = Scope(keys=(first.key,))
            producer = Producer(self._context, scope, upstream.limit, on_idle, max_tasks, upstream)
            self._opened.append(producer)
            self._supervisor.start(producer.dispatcher, producer.claimer)
            return producer

        finder = UpstreamFinder(of, opened, self._close)
        self._finder = Claimer(self._context, finder.scope, finder)

    def start(self) -> None:
        self._supervisor.start(*self.dispatchers, *self.claimers)

    def _close(self, producer: Producer) -> None:
        """Remove a producer that holds nothing and is not claiming."""
        self._opened.remove(producer)
        self._supervisor.cancel(producer.claimer)
        producer.buffer.close()
        self._claimed += producer.claimer.claimed


OnIdle: TypeAlias = Callable[[Producer], None]


class UpstreamFinder:
    """An intake for claims from upstreams that no producer works on.

    `of` is the scope of all such upstreams, and how many requests may be in flight at each of them. `opened`
    opens a producer for one of them, by the first claim from it.
    """

    def __init__(
        self,
        of: ProducerScope,
        opened: Callable[[Claim, OnIdle], Producer],
        close: Callable[[Producer], None],
    ) -> None:
        self._of = of
        self._opened = opened
        self._close_producer = close
        self._open: dict[str, Producer] = {}
        self._room = asyncio.Event()
        self._room.set()
        # The lines found last were too large to be read together.
        self._one_at_a_time = False

    def __len__(self) -> int:
        return 0

    def scope(self) -> Scope:
        return replace(self._of.scope, excluded=(*self._of.scope.excluded, *self._open))

    async def needs_refill(self) -> None:
        await self._room.wait()
        if self._open:
            await asyncio.sleep(_LOOK_EVERY)

    def wanted(self) -> int:
        if len(self._open) >= MAX_OPEN:
            idle = next((each for each in self._open.values() if each.idle), None)
            if idle is None:
                return 0
            self._close(idle)
        return 1 if self._one_at_a_time else min(self._of.concurrency, _FIRST_CLAIM)

    def room_for(self, count: int) -> int | None:
        return None if count == 1 else MAX_FETCH

    def mark_full(self) -> None:
        self._room.clear()

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        self._one_at_a_time = bool(left_out) and not items
        for key, found in groupby(items, lambda item: item.claim.key):
            of_key = [item for item in left_out if item.claim.key == key]
            lines = list(found)
            self._producer(lines[0].claim).accept(lines, of_key)

    def _producer(self, first: Claim) -> Producer:
        producer = self._open.get(first.key)
        if producer is None:
            producer = self._open[first.key] = self._opened(first, self._close)
        return producer

    def _close(self, producer: Producer) -> None:
        if producer.max_tasks is not None and len(self._open) < MAX_OPEN:
            # It claims within the limit of tasks. The finder would claim without one, each time it is closed.
            return
        (key,) = producer.scope.keys or ()
        del self._open[key]
        self._close_producer(producer)
        self._room.set()

"""The producers of a worker: lasting ones, and those of routing keys that have work.

Slots belong to an upstream, and there to a model. Routing keys are models, operations, and the URLs that
batches name. A key becomes known by a claim: a `KeyFinder` claims from keys that no producer works on, opens
the producers of each key that it finds, and leaves that key to them. A key that has nothing left to do is
closed, except that of a provider, which keeps to the limit of its tasks. So an idle worker has few producers,
and new work costs one claim, however many keys there were.

If more keys have work than may be open, they take turns: the one that has been open longest claims no more,
and is closed when its lines are done.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import overload
from uuid import UUID

import msgspec
from msgspec.structs import replace

from batchline.model import RESERVED, Claim, Item
from batchline.model.concurrency import AutoConcurrency
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.concurrency_controller import START
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.upstream import Upstream
from batchline.worker.buffer import MAX_FETCH
from batchline.worker.claimer import Claimer
from batchline.worker.clock import Clock
from batchline.worker.context import ProducerContext
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.producer_group import ProducerGroup
from batchline.worker.supervisor import Supervisor

# Each has its own slots, so this bounds what is in flight.
MAX_OPEN = 32
_MAX_ROTATING = MAX_OPEN + MAX_OPEN // 4
# Lines of the first claim from a key; its producers claim the others.
_FIRST_CLAIM = 64
# While producers are at work, a finder claims no more often than this; if no more may be open, than that.
_LOOK_EVERY = 0.05
_LOOK_EVERY_FULL = 1.0
# So long a key is open at least, if others wait.
_MIN_OPEN = 5.0
# The producers of a key that several upstreams serve are kept so long after their last line: to open them,
# the first lines must be claimed twice.
_KEPT = 60.0


class Discovery(msgspec.Struct, frozen=True):
    """The scope of routing keys that have producers while they have work. `members` are the upstreams that
    serve a key, by the first claim from it; None: the key is a URL."""

    scope: Scope
    concurrency: int
    members: Callable[[Claim], Sequence[ProducerScope]] | None = None

    def members_of(self, first: Claim) -> Sequence[ProducerScope]:
        if self.members is not None:
            return self.members(first)
        return [url_member(first, self.concurrency)]


def url_member(first: Claim, concurrency: int) -> ProducerScope:
    """The upstream that a batch names."""
    provider = first.settings.provider
    return ProducerScope(
        Scope(keys=(first.key,)),
        concurrency,
        first.key.removeprefix(RESERVED),
        None if provider is None else provider.max_tasks,
    )


class Producers(Sequence[Producer]):
    """Permanent producers first, then temporary ones."""

    def __init__(self, context: ProducerContext, upstreams: Upstreams, supervisor: Supervisor) -> None:
        self._context = context
        self.upstreams = self._upstreams = upstreams
        self._supervisor = supervisor
        self._lasting: list[ProducerGroup] = []
        # Added while the worker runs.
        self._extra: list[ProducerGroup] = []
        self._open = OpenKeys(context.clock, self._close)
        self._finders: list[Claimer] = []
        # The URLs of lasting producers.
        self._known: set[str] = set()
        # By producers that are closed; less what was given back at once.
        self._claimed = 0

    @overload
    def __getitem__(self, index: int) -> Producer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Producer]: ...
    def __getitem__(self, index: int | slice) -> Producer | Sequence[Producer]:
        groups = (*self._lasting, *self._extra, *self._open.groups)
        return [producer for group in groups for producer in group.producers][index]

    def __len__(self) -> int:
        return len(self[:])

    @property
    def claimers(self) -> list[Claimer]:
        return [*(producer.claimer for producer in self), *self._finders]

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
        group = ProducerGroup("", self._context, lambda _: None)
        group.add([self._producer(of, group)])
        self._lasting.append(group)
        if of.upstream is not None:
            self._known.add(urls.normalized(of.upstream))

    def add_for_now(self, of: ProducerScope, on_closed: Callable[[], None]) -> None:
        """Add a producer while the worker runs. It is closed when it has nothing left to do."""

        def rest(group: ProducerGroup) -> None:
            if group in self._extra:
                self._extra.remove(group)
                self._close(group)
                on_closed()

        group = ProducerGroup("", self._context, rest)
        group.add([self._producer(of, group)])
        self._extra.append(group)
        for producer in group.producers:
            self._supervisor.start(producer.dispatcher, producer.claimer)

    def discover(self, discovery: Discovery) -> None:
        """Open producers for each routing key in this scope, while it has work. Call it before `start`."""

        def found(first: Claim) -> ProducerGroup:
            return self.opened(first.key, discovery.members_of(first))

        finder = KeyFinder(discovery, self._open, found, self._put_back)
        self._finders.append(Claimer(self._context, finder.scope, finder))

    def opened(self, key: str, members: Sequence[ProducerScope]) -> ProducerGroup:
        """The producers of a routing key: those that are open, or new ones."""
        if (group := self._open.get(key)) is not None:
            return group
        group = ProducerGroup(key, self._context, self._open.rest)
        group.add([self._producer(of, group) for of in members])
        self._open.add(group)
        for producer in group.producers:
            self._supervisor.start(producer.dispatcher, producer.claimer)
        return group

    def start(self) -> None:
        self._supervisor.start(*self.dispatchers, *self.claimers)

    def _producer(self, of: ProducerScope, group: ProducerGroup) -> Producer:
        upstream = None
        limit = InFlightLimit(of.concurrency)
        if of.upstream is not None:
            upstream = self._upstream(of)
            limit = upstream.limit_of(group.key)
        return Producer(self._context, of, limit, group, upstream)

    def _upstream(self, of: ProducerScope) -> Upstream:
        """An upstream that a lasting producer sends to keeps its number of slots."""
        url = of.upstream or ""
        return self._upstreams.get(url, None if urls.normalized(url) in self._known else of.concurrency)

    def _put_back(self, items: int) -> None:
        """So many items that a finder has claimed were given back unsent."""
        self._claimed -= items
        self._context.budget.put_back(items)

    def _close(self, group: ProducerGroup) -> None:
        """Remove producers that hold nothing and are not claiming."""
        group.close()
        for producer in group.producers:
            self._supervisor.cancel(producer.claimer)
            producer.buffer.close()
            self._claimed += producer.claimer.claimed


class OpenKeys:
    """The routing keys that have producers now. All finders of a worker share it."""

    def __init__(self, clock: Clock, close: Callable[[ProducerGroup], None]) -> None:
        self._clock = clock
        self._close = close
        self._groups: dict[str, ProducerGroup] = {}
        self._opened_at: dict[str, float] = {}
        self._retiring: set[str] = set()
        # Set and replaced when one is closed.
        self.closed = asyncio.Event()

    @property
    def groups(self) -> list[ProducerGroup]:
        return list(self._groups.values())

    @property
    def keys(self) -> list[str]:
        return list(self._groups)

    @property
    def full(self) -> bool:
        return self._count >= MAX_OPEN

    @property
    def _count(self) -> int:
        return sum(len(group.producers) for group in self._groups.values())

    def get(self, key: str) -> ProducerGroup | None:
        return self._groups.get(key)

    def add(self, group: ProducerGroup) -> None:
        self._groups[group.key] = group
        self._opened_at[group.key] = self._clock()
        if self._count > MAX_OPEN:
            self._retire()

    def rest(self, group: ProducerGroup) -> None:
        """Close a key that has nothing to do, unless it is worth keeping. One whose upstream is away is: a
        finder would claim its lines again and again, and those of other keys never."""
        kept = any(each.max_tasks is not None for each in group.producers)
        recent = len(group.producers) > 1 and self._clock() - group.busy_at < _KEPT
        needed = not group.available or (not self.full and (kept or recent))
        if group.key in self._retiring or not needed:
            self._remove(group)

    def has_room(self) -> bool:
        """Whether one more key may be opened now. A few more than usual may, so that keys take turns."""
        if not self.full:
            return True
        idle = (each for each in self._groups.values() if each.idle and each.available)
        if (group := next(idle, None)) is not None:
            self._remove(group)
            return True
        if self._count < _MAX_ROTATING:
            return True
        self._retire()
        return False

    def _retire(self) -> None:
        """The key that has been open longest claims no more, and is closed when its lines are done."""
        now = self._clock()
        for key, at in self._opened_at.items():
            if key not in self._retiring:
                if now - at >= _MIN_OPEN:
                    self._retiring.add(key)
                    group = self._groups[key]
                    group.retire()
                    if group.idle:
                        # It has nothing to do that it could end with.
                        self._remove(group)
                return

    def _remove(self, group: ProducerGroup) -> None:
        if self._groups.pop(group.key, None) is None:
            return
        del self._opened_at[group.key]
        self._retiring.discard(group.key)
        self._close(group)
        self.closed.set()
        self.closed = asyncio.Event()


class KeyFinder:
    """An intake for claims from routing keys that no producer works on. `found` opens the producers of a key,
    by the first claim from it. `put_back` is called with the number of items that were given back."""

    def __init__(
        self,
        discovery: Discovery,
        open_keys: OpenKeys,
        found: Callable[[Claim], ProducerGroup],
        put_back: Callable[[int], None],
    ) -> None:
        self._of = discovery
        self._open = open_keys
        self._found = found
        self._put_back = put_back
        self._full = False
        # The lines found last were too large to be read together.
        self._one_at_a_time = False

    def __len__(self) -> int:
        return 0

    def scope(self) -> Scope:
        scope, opened = self._of.scope, self._open.keys
        if scope.keys is not None:
            return replace(scope, keys=tuple(key for key in scope.keys if key not in opened))
        return replace(scope, excluded=(*scope.excluded, *opened))

    async def needs_refill(self) -> None:
        if self._full:
            self._full = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_FULL):
                    await self._open.closed.wait()
        elif self._open.keys:
            await asyncio.sleep(_LOOK_EVERY_FULL if self._open.full else _LOOK_EVERY)

    def wanted(self) -> int:
        if not self._open.has_room():
            return 0
        if self._one_at_a_time:
            return 1
        # What has no slot at first is given back.
        auto = isinstance(self._of.concurrency, AutoConcurrency)
        return START if auto else min(self._of.concurrency, _FIRST_CLAIM)

    def room_for(self, count: int) -> int | None:
        return None if count == 1 else MAX_FETCH

    def mark_full(self) -> None:
        self._full = True

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        self._one_at_a_time = bool(left_out) and not items
        for key, some in groupby(items, lambda item: item.claim.key):
            of_key = [item for item in left_out if item.claim.key == key]
            lines = list(some)
            taken = self._found(lines[0].claim).accept(lines, of_key)
            self._put_back(len(lines) - taken)

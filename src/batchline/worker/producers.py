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
from batchline.worker.buffer import MAX_FETCH
from batchline.worker.claimer import Claimer
from batchline.worker.crew import Crew, Post
from batchline.worker.slots import Slots
from batchline.worker.supervisor import Services
from batchline.worker.tasks import send_home

# Each has slots of its own, so this bounds what is in flight. More upstreams wait until one has no work.
MAX_OPEN = 32
# Lines of the first claim from an upstream; its producer claims the others.
_FIRST_CLAIM = 64
# While producers are at work, another upstream is looked for no more often than this.
_LOOK_EVERY = 0.05
# Upstreams without work whose lowered limit is remembered.
_MAX_REMEMBERED = 1000


class Producers(Sequence[Crew]):
    """All producers of a worker: first those that last as long as it does, then those that come and go."""

    def __init__(self, lasting: Sequence[Crew]) -> None:
        self.lasting = tuple(lasting)
        self.finder: Claimer | None = None
        self._opened: dict[Crew, asyncio.Task[None]] = {}
        # By those that are closed.
        self._claimed = 0
        self._services: Services | None = None
        self._dispatch_failed: Callable[[], object] = lambda: None
        self._claim_failed: Callable[[], object] = lambda: None
        self._dispatching: list[asyncio.Task[None]] = []
        self._claiming: list[asyncio.Task[None]] = []

    @overload
    def __getitem__(self, index: int) -> Crew: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Crew]: ...
    def __getitem__(self, index: int | slice) -> Crew | Sequence[Crew]:
        return (*self.lasting, *self._opened)[index]

    def __len__(self) -> int:
        return len(self.lasting) + len(self._opened)

    @property
    def claimers(self) -> list[Claimer]:
        claimers = [crew.claimer for crew in self]
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
        self._dispatching = [self._dispatch(services, crew) for crew in self.lasting]
        self._claiming = [self._claim(services, claimer) for claimer in self.claimers]

    def open(self, crew: Crew) -> None:
        """Add a producer that comes and goes."""
        assert self._services is not None, "not started"
        dispatching = self._dispatch(self._services, crew)
        dispatching.add_done_callback(self._dispatching.remove)
        self._dispatching.append(dispatching)
        self._opened[crew] = self._claim(self._services, crew.claimer)

    def close(self, crew: Crew) -> None:
        """Remove a producer that holds nothing and is not claiming."""
        claiming = self._opened.pop(crew)
        # It waits for word of new work, or is about to.
        claiming.cancel()
        crew.buffer.close()
        self._claimed += crew.claimer.claimed

    def _dispatch(self, services: Services, crew: Crew) -> asyncio.Task[None]:
        return services.start("dispatcher", crew.dispatcher.run, self._dispatch_failed)

    def _claim(self, services: Services, claimer: Claimer) -> asyncio.Task[None]:
        return services.start("claimer", claimer.run, self._claim_failed)

    async def stop_claiming(self) -> None:
        await send_home([*self._claiming, *self._opened.values()])


class OpenCrew(Protocol):
    def __call__(self, scope: Scope, slots: Slots, on_idle: Callable[[Crew], None]) -> Crew: ...


class UpstreamFinder:
    """An intake for claims from upstreams that no producer works on.

    `post` is the scope of all such upstreams, and how many requests may be in flight at each of them.
    """

    def __init__(self, post: Post, producers: Producers, make: OpenCrew) -> None:
        self._post = post
        self._producers = producers
        self._make = make
        self._open: dict[str, Crew] = {}
        self._lowered: dict[str, Slots] = {}
        self._room = asyncio.Event()
        self._room.set()
        # The lines found last were too large to be read together.
        self._one_at_a_time = False

    def __len__(self) -> int:
        return 0

    def scope(self) -> Scope:
        return replace(self._post.scope, besides=(*self._post.scope.besides, *self._open))

    async def hungry(self) -> None:
        await self._room.wait()
        if self._open:
            await asyncio.sleep(_LOOK_EVERY)

    def wanted(self) -> int:
        if len(self._open) >= MAX_OPEN:
            return 0
        return 1 if self._one_at_a_time else min(self._post.concurrency, _FIRST_CLAIM)

    def room_for(self, count: int) -> int | None:
        return None if count == 1 else MAX_FETCH

    def sated(self) -> None:
        self._room.clear()

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        self._one_at_a_time = bool(left_out) and not items
        for key, found in groupby(items, lambda item: item.claim.key):
            of_key = [item for item in left_out if item.claim.key == key]
            self._producer(key).accept(list(found), of_key)

    def _producer(self, key: str) -> Crew:
        crew = self._open.get(key)
        if crew is None:
            slots = self._lowered.pop(key, None) or Slots(self._post.concurrency)
            crew = self._open[key] = self._make(Scope(keys=(key,)), slots, self._close)
            self._producers.open(crew)
        return crew

    def _close(self, crew: Crew) -> None:
        (key,) = crew.scope.keys or ()
        del self._open[key]
        self._producers.close(crew)
        if crew.slots.adapting:
            self._lowered[key] = crew.slots
            if len(self._lowered) > _MAX_REMEMBERED:
                del self._lowered[next(iter(self._lowered))]
        self._room.set()

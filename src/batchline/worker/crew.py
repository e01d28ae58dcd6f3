"""Those who work on one part of what there is: a claimer, its buffer, and the runners that empty it.

A worker has one crew, or one for each upstream. Each claims only what its own upstream can take, so a slow
one never fills the places in which lines for another could be under way.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

import msgspec

from batchline.config import WorkerSettings
from batchline.executors.executor import Executor
from batchline.executors.memory import BodyMemory
from batchline.model import Deferred
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.buffer import Buffer
from batchline.worker.claimer import Claimer
from batchline.worker.clock import Clock
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.lease import Lease
from batchline.worker.rate import Rate
from batchline.worker.settler import Settler
from batchline.worker.strays import Strays


class Post(msgspec.Struct, frozen=True):
    """What a crew works on, and how many items at once."""

    scope: Scope
    concurrency: int


class Crew:
    def __init__(
        self,
        post: Post,
        session: Session,
        executor: Executor,
        settler: Settler,
        lease: Lease,
        settings: WorkerSettings,
        clock: Clock,
        turn: asyncio.Lock,
        strays: Strays,
        memory: BodyMemory,
        max_request_bytes: int,
        on_nothing: Callable[[], None],
    ) -> None:
        self.scope = post.scope
        self._settler = settler
        rate = Rate(clock)
        self.buffer = Buffer(settings, rate, max_request_bytes)
        self.dispatcher = Dispatcher(executor, self.buffer, settler, lease, rate, memory, post.concurrency)
        self.claimer = Claimer(session, lease, post.scope, self.buffer, turn, strays, settler.add, on_nothing)

    @property
    def holding(self) -> bool:
        return bool(len(self.buffer) or self.dispatcher.in_flight)

    def spans(self) -> set[int]:
        return self.buffer.spans() | self.dispatcher.spans()

    def give_back(self, batch_id: UUID | None = None) -> None:
        """What was not sent, all of it or that of one batch."""
        for item in self.buffer.discard(batch_id):
            self._settler.add(Deferred(item))

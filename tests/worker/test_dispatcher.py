"""The dispatcher alone: how many items run at once, when it is idle, and what it gives back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from batchline.config.settings import WorkerSettings
from batchline.model import Completed, Deferred, Item, Verdict
from batchline.store.session import Session
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.memory import BodyMemory
from batchline.worker.buffer import Buffer
from batchline.worker.context import ProducerContext
from batchline.worker.dispatcher import Dispatcher
from batchline.worker.item_budget import ItemBudget
from batchline.worker.lease import Lease
from batchline.worker.rate import Rate
from batchline.worker.reconciler import Reconciler
from batchline.worker.settler import Settler
from batchline.worker.slots import Slots
from tests.support.executors import Answering
from tests.support.http_executor import an_item

PATIENCE = 120.0


class Waiting(Answering):
    """Items wait for a permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.begun = asyncio.Semaphore(0)
        self.in_flight = self.maximum = 0

    async def run(self, item: Item) -> Verdict:
        self.in_flight += 1
        self.maximum = max(self.maximum, self.in_flight)
        self.begun.release()
        await self.permits.acquire()
        self.in_flight -= 1
        return await super().run(item)

    async def until_begun(self, count: int) -> None:
        for _ in range(count):
            await self.begun.acquire()

    def permit(self, count: int) -> None:
        for _ in range(count):
            self.permits.release()


class Kept:
    """A settler that only keeps verdicts."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def of(self, kind: type[Verdict]) -> int:
        return sum(isinstance(verdict, kind) for verdict in self.verdicts)


@dataclass
class Stage:
    dispatcher: Dispatcher
    executor: Waiting
    buffer: Buffer
    limit: InFlightLimit
    settler: Kept
    lease: Lease
    empty: list[bool]

    def put(self, count: int) -> None:
        self.buffer.put([an_item(None, line_no=number) for number in range(1, count + 1)])


@asynccontextmanager
async def a_dispatcher(concurrency: int) -> AsyncIterator[Stage]:
    now, settings, memory = asyncio.get_running_loop().time, WorkerSettings(), BodyMemory(2**29)
    lease = Lease(settings, now, lambda: 0)
    executor, kept, empty = Waiting(), Kept(), list[bool]()
    context = ProducerContext(
        session=cast(Session, None),
        executor=executor,
        settler=cast(Settler, kept),
        lease=lease,
        reconciler=cast(Reconciler, None),
        settings=settings,
        memory=memory,
        clock=now,
        max_request_bytes=memory.for_requests,
        budget=ItemBudget(None),
        on_claimed=lambda: None,
    )
    limit = InFlightLimit(concurrency)
    slots, rate = Slots(limit), Rate(now)
    buffer = Buffer(settings, rate, slots, memory, memory.for_requests)
    dispatcher = Dispatcher(context, buffer, slots, rate, lambda: empty.append(dispatcher.idle.is_set()))
    running = asyncio.create_task(dispatcher.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield Stage(dispatcher, executor, buffer, limit, kept, lease, empty)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_it_runs_as_many_items_at_once_as_the_limit_allows() -> None:
    async with a_dispatcher(3) as stage:
        stage.put(10)
        assert not stage.dispatcher.idle.is_set()
        await stage.executor.until_begun(3)
        assert stage.dispatcher.in_flight == 3
        stage.executor.permit(10)
        await stage.dispatcher.idle.wait()
        assert stage.executor.maximum == 3
        assert stage.settler.of(Completed) == 10
        assert stage.empty == [True], "once, after the last one"


async def test_the_number_in_flight_changes_with_the_limit_while_it_runs() -> None:
    async with a_dispatcher(2) as stage:
        stage.put(20)
        await stage.executor.until_begun(2)
        stage.limit.resize(5)
        stage.executor.permit(1)
        await stage.executor.until_begun(4)
        assert stage.dispatcher.in_flight == 5
        stage.limit.resize(1)
        stage.executor.permit(5)
        await stage.executor.until_begun(1)
        assert stage.dispatcher.in_flight == 1
        stage.executor.permit(20)
        await stage.dispatcher.idle.wait()
        assert stage.settler.of(Completed) == 20


async def test_it_asks_for_items_after_a_lowered_limit_has_ended_all_runners_but_one_that_waits() -> None:
    async with a_dispatcher(4) as stage:
        stage.put(3)
        await stage.executor.until_begun(3)
        for _ in range(10):
            await asyncio.sleep(0)
        assert stage.buffer.takers == 1
        stage.limit.resize(1)
        assert not stage.buffer.wanted()
        stage.buffer.mark_full()
        stage.executor.permit(3)
        await stage.dispatcher.idle.wait()
        assert stage.buffer.wanted()
        assert stage.buffer.refilling


async def test_a_dispatcher_that_stops_gives_back_what_it_has_not_sent() -> None:
    async with a_dispatcher(2) as stage:
        stage.put(5)
        await stage.executor.until_begun(2)
        stage.dispatcher.stop()
        assert stage.settler.of(Deferred) == 3
        assert not stage.dispatcher.idle.is_set(), "two are in flight"
        stage.executor.permit(2)
        await stage.dispatcher.idle.wait()
        assert stage.settler.of(Completed) == 2


async def test_it_is_idle_after_its_last_item_was_left_to_others() -> None:
    """The lease was lost while the item waited: there is no verdict, and nothing is left to do."""
    async with a_dispatcher(1) as stage:
        stage.lease.renewed(-1000.0)
        assert stage.lease.lost
        stage.put(1)
        await stage.dispatcher.idle.wait()
        assert stage.settler.verdicts == []
        assert stage.executor.sent == []


async def test_items_that_are_dropped_leave_it_idle() -> None:
    async with a_dispatcher(1) as stage:
        stage.put(3)
        await stage.executor.until_begun(1)
        assert stage.dispatcher.discard() == 2
        assert not stage.dispatcher.idle.is_set()
        stage.executor.permit(1)
        await stage.dispatcher.idle.wait()


async def test_runners_are_added_while_all_others_are_busy() -> None:
    async with a_dispatcher(1) as stage:
        stage.put(3)
        await stage.executor.until_begun(1)
        stage.limit.resize(3)
        stage.dispatcher.add_runners()
        await stage.executor.until_begun(2)
        assert stage.dispatcher.in_flight == 3
        stage.executor.permit(3)
        await stage.dispatcher.idle.wait()

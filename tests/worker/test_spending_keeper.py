"""The spending service alone: what it records, and when it lets items of a batch with a cap go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeAlias
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    Completed,
    Item,
    ModelPrice,
    RunSettings,
    Settled,
    Spending,
    Usage,
    Verdict,
)
from batchline.model.ids import new_id
from batchline.store import batches, budgets, spans
from batchline.store.batches import NewBatch
from batchline.store.budgets import Amount, Holds
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import OnLate, Scope
from batchline.upstreams.memory import BodyMemory
from batchline.worker.lease import Lease
from batchline.worker.settler import Settler
from batchline.worker.spending import CappedExecutor, SpendingKeeper
from tests.support.builders import LATER, a_file, read, sql, take
from tests.support.executors import Answering

# A token of input costs one nano-dollar.
PRICES = {"m": ModelPrice(input=0.001, output=0.002)}
TEN = Amount(10, 10)
PATIENCE = 60.0
KeptLease: TypeAlias = tuple[SpendingKeeper, Lease]


@asynccontextmanager
async def a_keeper(url: str) -> AsyncIterator[KeptLease]:
    """A worker's keeper, on a connection of its own."""
    lease = Lease(WorkerSettings(), monotonic, lambda: 0)
    async with Session(url, "keeper") as session:
        keeper = SpendingKeeper(session, lease)
        running = asyncio.create_task(keeper.run())
        try:
            async with asyncio.timeout(PATIENCE):
                yield keeper, lease
            assert not running.done(), "the service has ended"
        finally:
            running.cancel()
            await asyncio.wait([running])


@asynccontextmanager
async def a_settler(db: Session, keeper: SpendingKeeper, lease: Lease) -> AsyncIterator[Settler]:
    settings = WorkerSettings()
    settler = Settler(db, lease, settings, BodyMemory(settings.body_memory), lambda settled, earliest: None)
    settler.on_stored = keeper.stored
    running = asyncio.create_task(settler.run())
    try:
        yield settler
    finally:
        running.cancel()
        await asyncio.wait([running])


async def a_capped_batch(db: Session, max_cost: int, lines: int = 4) -> Batch:
    settings = RunSettings(spending=Spending(PRICES, max_cost=max_cost))
    file_id = await a_file(db, {"m": lines})
    return await batches.create(db, NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, settings))


async def claimed(db: Session, lease: Lease, batch: Batch, limit: int = 1) -> list[Item]:
    requested_at = lease.now()
    items = await take(db, lease.worker, limit, Scope(batch_id=batch.id))
    lease.renewed(requested_at)
    return items


def answer(item: Item, tokens: int = 10, output: bytes = b"{}") -> Completed:
    return Completed(item, 200, output, Usage(input_tokens=tokens))


async def settled(settler: Settler, keeper: SpendingKeeper, *verdicts: Verdict) -> None:
    for verdict in verdicts:
        settler.add(verdict)
    settler.wake()
    await settler.idle.wait()
    await keeper.idle.wait()


async def test_a_request_without_an_answer_keeps_no_other_worker_waiting(
    database_url: str, db: Session
) -> None:
    """Its reservation is as large as before, but none of it will be free again: the other worker pauses."""
    batch = await a_capped_batch(db, 10)
    async with a_keeper(database_url) as (anna, hers), a_keeper(database_url) as (bert, his):
        (first,), (second,) = await claimed(db, hers, batch), await claimed(db, his, batch)
        assert await anna.grant(first, TEN) == "granted"
        assert await budgets.holds(db, batch.id) == Holds(TEN, Amount())
        waiting = asyncio.create_task(bert.grant(second, TEN))

        anna.ended(first, TEN, None)
        await anna.idle.wait()

        assert await budgets.holds(db, batch.id) == Holds(Amount(), TEN)
        assert await waiting == "closed"
        paused = await read(db, batch)
        assert (paused.status, paused.pause_rule) == (BatchStatus.PAUSED, "max_cost")


async def test_an_item_that_is_cancelled_after_its_grant_gives_it_back(
    database_url: str, db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reservation is committed, but the item has not woken up yet."""
    batch = await a_capped_batch(db, 10)
    async with a_keeper(database_url) as (keeper, lease):
        first, second = await claimed(db, lease, batch, 2)
        loop, reserve = asyncio.get_running_loop(), budgets.reserve

        async def reserve_and_cancel(*args: object, **kwargs: object) -> budgets.Reservation:
            reservation = await reserve(*args, **kwargs)  # type: ignore[arg-type]
            loop.call_soon(waiting.cancel)
            return reservation

        monkeypatch.setattr(budgets, "reserve", reserve_and_cancel)
        waiting = asyncio.create_task(keeper.grant(first, TEN))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        monkeypatch.undo()

        await keeper.idle.wait()
        assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount())
        assert await keeper.grant(second, TEN) == "granted"


async def test_a_batch_that_cannot_reserve_stops_no_other(database_url: str, db: Session) -> None:
    bad, good = await a_capped_batch(db, 10), await a_capped_batch(db, 10)
    async with a_keeper(database_url) as (keeper, lease):
        (refused,), (item,) = await claimed(db, lease, bad), await claimed(db, lease, good)
        await sql(
            db,
            "UPDATE batchline.batches SET settings = jsonb_set(settings, '{spending,max_cost}', '\"x\"')"
            " WHERE id = %(batch)s",
            batch=bad.id,
        )
        executor = CappedExecutor(upstream := Answering(), keeper)
        ran = await executor.run(refused)
        assert ran.item is refused
        assert getattr(ran, "delay", None) == 30.0, "it comes back later"
        assert upstream.sent == []
        assert await keeper.grant(item, TEN) == "granted"


async def test_amounts_beyond_any_number_stop_nothing(database_url: str, db: Session) -> None:
    """As usages that an upstream has made up: the batch pauses, and the worker goes on."""
    batch, other = await a_capped_batch(db, 10), await a_capped_batch(db, 10)
    async with a_keeper(database_url) as (keeper, lease):
        first, second = await claimed(db, lease, batch, 2)
        (third,) = await claimed(db, lease, other)
        assert await keeper.grant(first, TEN) == "granted"
        keeper.ended(first, TEN, Amount(2**70, 10**30))
        keeper.stored([late := answer(first)], [late])
        assert await keeper.grant(second, Amount(2**70, 10**30)) == "closed"
        assert (await read(db, batch)).pause_rule == "max_cost"
        await keeper.idle.wait()
        assert (await budgets.holds(db, batch.id)).unconfirmed.cost >= 2**60
        assert await keeper.grant(third, TEN) == "granted"


@pytest.fixture
def lost_answer(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The next settle commits, and its answer is lost. Set afterwards."""
    lost, settle = asyncio.Event(), spans.settle

    async def settle_and_lose(
        session: Session, worker_id: UUID, verdicts: list[Verdict], on_late: OnLate
    ) -> list[Settled]:
        done = await settle(session, worker_id, verdicts, on_late)
        if not lost.is_set():
            lost.set()
            raise StoreUnavailable("the connection was lost")
        return done

    monkeypatch.setattr(spans, "settle", settle_and_lose)
    return lost


async def sent(keeper: SpendingKeeper, lease: Lease, items: list[Item]) -> None:
    """Each is granted, sent, and answered for ten."""
    for item in items:
        assert await keeper.grant(item, TEN) == "granted"
        keeper.ended(item, TEN, TEN, lease.sender())


async def test_a_settle_whose_answer_is_lost_is_counted_once(
    database_url: str, db: Session, lost_answer: asyncio.Event
) -> None:
    batch = await a_capped_batch(db, 100)
    async with a_keeper(database_url) as (keeper, lease), a_settler(db, keeper, lease) as settler:
        items = await claimed(db, lease, batch, 3)
        await sent(keeper, lease, items)

        await settled(settler, keeper, *map(answer, items))

        assert lost_answer.is_set()
        assert (await read(db, batch)).cost == 30
        assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount())


async def test_after_a_lost_lease_a_settle_without_an_answer_may_have_been_another_workers(
    database_url: str, db: Session, lost_answer: asyncio.Event
) -> None:
    batch = await a_capped_batch(db, 100)
    async with a_keeper(database_url) as (keeper, lease), a_settler(db, keeper, lease) as settler:
        items = await claimed(db, lease, batch, 3)
        await sent(keeper, lease, items)

        lease.abandon()
        await settled(settler, keeper, *map(answer, items))

        assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount(30, 30))


async def test_what_a_result_that_the_database_refuses_has_cost_stays_reserved(
    database_url: str, db: Session
) -> None:
    """Its line fails without usage, so that the counters do not have it."""
    batch = await a_capped_batch(db, 100)
    async with a_keeper(database_url) as (keeper, lease), a_settler(db, keeper, lease) as settler:
        good, bad = await claimed(db, lease, batch, 2)
        await sent(keeper, lease, [good, bad])

        await settled(settler, keeper, answer(good), answer(bad, output=b"\xff"))

        now = await read(db, batch)
        assert (now.completed, now.failed, now.cost) == (1, 1, 10)
        assert await budgets.holds(db, batch.id) == Holds(Amount(), TEN)

"""Workers keep a batch within its caps, and pause it when they are reached."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence
from batchline.files.objects import Objects
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    Completed,
    Item,
    ModelPrice,
    Ran,
    Retried,
    RunSettings,
    Spending,
    TimedOut,
    Usage,
)
from batchline.model.ids import new_id
from batchline.model.spending import largest_usage
from batchline.store import batches, budgets
from batchline.store.batches import NewBatch
from batchline.store.budgets import Amount, Holds
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import LATER, a_file, read

# A token of input costs one nano-dollar, a token of output two.
PRICES = {"m": ModelPrice(input=0.001, output=0.002)}
# The input of a line such as {"line": 7} is 4 tokens.
EACH = Amount(4 + 2 * 10, 4 + 10)


class Charging:
    """Answers after a while, and keeps the upstream's ledger: what it has charged, and what it may charge for
    the requests that it has."""

    def __init__(self, spending: Spending, rng: random.Random) -> None:
        self.spending = spending
        self.rng = rng
        self.charged = 0
        self.open = 0
        self.highest = 0
        self.sent = 0
        self.answer: Callable[[Item, Usage], Ran] = answered

    async def run(self, item: Item) -> Ran:
        top = largest_usage(self.spending, item.claim.url, item.body)
        largest = self.spending.cost(item.claim.model, top)
        self.sent += 1
        self.open += largest
        self.highest = max(self.highest, self.charged + self.open)
        for _ in range(self.rng.randint(0, 5)):
            await asyncio.sleep(0)
        used = Usage(self.rng.randint(1, top.input_tokens), 0, self.rng.randint(0, top.output_tokens))
        self.open -= largest
        self.charged += self.spending.cost(item.claim.model, used)
        return self.answer(item, used)

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return


def answered(item: Item, usage: Usage) -> Ran:
    return Completed(item, 200, answered_line(item, 200, "r", b"{}"), usage)


async def a_capped_batch(db: Session, lines: int, spending: Spending) -> Batch:
    file_id = await a_file(db, {"m": lines})
    settings = RunSettings(spending=spending)
    return await batches.create(db, NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, settings))


def a_worker_of(url: str, folder: Path, executor: Charging, concurrency: int = 16) -> Worker:
    settings = WorkerSettings(concurrency=concurrency, drain=True, lease=30.0)
    return Worker(url, executor, Objects.at(folder / "objects"), settings, Scope())


async def drain(*workers: Worker) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())


async def test_a_batch_that_fits_completes_and_nothing_stays_reserved(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    spending = Spending(PRICES, max_cost=100 * EACH.cost, max_tokens=100 * EACH.tokens, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 100, spending), Charging(spending, random.Random(1))

    await drain(a_worker_of(database_url, tmp_path, upstream))

    ended = await read(db, batch)
    assert (ended.status, ended.completed) == (BatchStatus.COMPLETED, 100)
    assert ended.cost == upstream.charged
    assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount())


@pytest.mark.parametrize("seed", range(4))
async def test_several_workers_spend_the_cap_together_and_no_more(
    database_url: str, db: Session, tmp_path: Path, seed: int
) -> None:
    cap = 50 * EACH.cost
    spending = Spending(PRICES, max_cost=cap, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 500, spending), Charging(spending, random.Random(seed))

    await drain(*(a_worker_of(database_url, tmp_path, upstream) for _ in range(3)))

    paused = await read(db, batch)
    assert (paused.status, paused.paused_by) == (BatchStatus.PAUSED, "max_cost")
    assert upstream.highest <= cap
    assert paused.cost == upstream.charged
    # The body of line 100 and later is a token longer.
    assert cap - paused.cost <= EACH.cost, "it uses what there is"
    assert paused.completed == upstream.sent < 500

    # With a higher cap it continues, and sends nothing twice.
    raised = msgspec.structs.replace(spending, max_cost=600 * EACH.cost)
    await batches.change_settings(db, batch.id, RunSettings(spending=raised))
    assert await batches.resume(db, batch.id)
    await drain(a_worker_of(database_url, tmp_path, upstream))
    ended = await read(db, batch)
    assert (ended.status, ended.completed, upstream.sent) == (BatchStatus.COMPLETED, 500, 500)


async def test_a_cap_on_tokens_holds_without_prices(database_url: str, db: Session, tmp_path: Path) -> None:
    spending = Spending(max_tokens=20 * EACH.tokens, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 100, spending), Charging(spending, random.Random(3))

    await drain(a_worker_of(database_url, tmp_path, upstream))

    paused = await read(db, batch)
    assert paused.paused_by == "max_tokens"
    assert 19 * EACH.tokens < paused.input_tokens + paused.output_tokens <= 20 * EACH.tokens


async def test_a_request_without_an_answer_stays_reserved(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """Each of five may have been charged in full, so no sixth is sent."""
    spending = Spending(PRICES, max_cost=5 * EACH.cost, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 20, spending), Charging(spending, random.Random(4))
    upstream.answer = lambda item, usage: TimedOut(item, "timeout", "no answer", 0.01)

    await drain(a_worker_of(database_url, tmp_path, upstream, concurrency=1))

    paused = await read(db, batch)
    assert (paused.paused_by, paused.cost, upstream.sent) == ("max_cost", 0, 5)
    held = await budgets.holds(db, batch.id)
    assert held.unconfirmed.cost == 5 * EACH.cost


async def test_an_answer_without_usage_stays_reserved(database_url: str, db: Session, tmp_path: Path) -> None:
    spending = Spending(PRICES, max_cost=5 * EACH.cost, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 20, spending), Charging(spending, random.Random(5))
    upstream.answer = lambda item, usage: answered(item, Usage())

    await drain(a_worker_of(database_url, tmp_path, upstream))

    paused = await read(db, batch)
    assert (paused.paused_by, paused.completed) == ("max_cost", 5)


async def test_a_failed_attempt_counts_with_its_usage(database_url: str, db: Session, tmp_path: Path) -> None:
    spending = Spending(PRICES, max_cost=1000 * EACH.cost, output_tokens=10)
    batch, upstream = await a_capped_batch(db, 10, spending), Charging(spending, random.Random(6))
    upstream.answer = lambda item, usage: (
        Retried(item, "http_500", "failed", 0.01, usage) if item.claim.attempt == 1 else answered(item, usage)
    )

    await drain(a_worker_of(database_url, tmp_path, upstream))

    ended = await read(db, batch)
    assert (ended.completed, upstream.sent) == (10, 20)
    assert ended.cost == upstream.charged


async def test_a_worker_that_stops_sends_nothing_that_waits(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """One request is in flight and has the whole cap. The others wait; a stop gives them back."""
    spending = Spending(PRICES, max_cost=EACH.cost, output_tokens=10)
    batch, arrived, release = await a_capped_batch(db, 20, spending), asyncio.Event(), asyncio.Event()

    class Slow(Charging):
        async def run(self, item: Item) -> Ran:
            arrived.set()
            await release.wait()
            return await super().run(item)

    upstream = Slow(spending, random.Random(7))
    worker = a_worker_of(database_url, tmp_path, upstream)
    async with asyncio.timeout(60):
        running = asyncio.create_task(worker.run())
        await arrived.wait()
        worker.stop()
        release.set()
        await running

    stopped = await read(db, batch)
    assert (stopped.status, stopped.completed, upstream.sent) == (BatchStatus.IN_PROGRESS, 1, 1)
    assert stopped.counts.pending == 19
    assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount())

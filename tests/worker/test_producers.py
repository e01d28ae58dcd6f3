"""A worker with a producer for each upstream: a slow one fills no place of another's, and nothing stays."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Claim, Item, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope, WorkerId
from batchline.worker.producer import ProducerScope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, a_worker, read, sql, take
from tests.support.executors import Answering


class SlowForSome(Answering):
    """Answers at once, but for one model: its items wait until told."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.go_on = asyncio.Event()
        self.in_flight: Counter[str] = Counter()
        self.maximum: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.on_done = asyncio.Event()

    async def run(self, item: Item) -> Verdict:
        model = item.claim.model
        self.in_flight[model] += 1
        self.maximum[model] = max(self.maximum[model], self.in_flight[model])
        if model == self.slow:
            await self.go_on.wait()
        await asyncio.sleep(0)
        self.in_flight[model] -= 1
        self.done[model] += 1
        self.on_done.set()
        return await super().run(item)

    async def until_done(self, model: str, count: int) -> None:
        while self.done[model] < count:
            self.on_done.clear()
            await self.on_done.wait()


PRODUCERS = (
    ProducerScope(Scope(keys=("slow",)), 3),
    ProducerScope(Scope(keys=("fast",)), 5),
    ProducerScope(Scope(excluded=("slow", "fast")), 2),
)


async def test_a_slow_upstream_holds_up_no_other(database_url: str, db: Session, tmp_path: Path) -> None:
    executor = SlowForSome("slow")
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(drain=True, lease=30.0),
        Scope(),
        WorkerOptions(producers=PRODUCERS),
    )
    # The slow model's lines come first in the file, and there are more of them than places in all.
    batch = await a_batch(db, {"slow": 50, "fast": 200, "other": 30}, upstream=None)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until_done("fast", 200)
        await executor.until_done("other", 30)
        assert executor.done["slow"] == 0
        executor.go_on.set()
    assert (await read(db, batch)).completed == 280
    assert worker.claimed == 280
    assert executor.maximum["slow"] == 3
    assert executor.maximum["fast"] <= 5
    assert executor.maximum["other"] <= 2
    assert await sql(db, "SELECT count(*) FROM batchline.spans") == [(0,)]


async def test_excluded_keys_are_claimed_neither_fresh_nor_free_nor_from_dead_workers(db: Session) -> None:
    await a_batch(db, {"slow": 4, "fast": 4}, upstream=None)
    others = Scope(excluded=("slow",))
    # What a pattern would read as any sign is none.
    assert Scope(excluded=("s_ow", "s%")).params()["excluded"] == ["s\\_ow", "s\\%"]

    items = await take(db, a_worker("dead", lease=-1.0), 3, Scope(keys=("slow",)))
    assert len(items) == 3
    found = await take(db, a_worker(), 100, others)
    assert {item.claim.model for item in found} == {"fast"}
    assert len(found) == 4
    assert await take(db, a_worker(), 100, others) == []
    assert len(await take(db, a_worker(), 100)) == 4


async def test_a_lost_lease_that_one_producer_notices_drops_the_items_of_all_producers(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """After that the worker has a new name, under which the other producer's items look like its own."""
    jump = [0.0]
    loop = asyncio.get_running_loop()
    worker = Worker(
        database_url,
        SlowForSome("none"),
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=30.0),
        Scope(),
        WorkerOptions(producers=PRODUCERS, clock=lambda: loop.time() + jump[0]),
    )
    await a_batch(db, {"slow": 4, "fast": 4}, upstream=None)
    slow, fast, _ = worker.producers
    for producer, key in ((slow, "slow"), (fast, "fast")):
        producer.buffer.put(await take(db, worker.lease.worker, 4, Scope(keys=(key,))))
    worker.lease.renewed(worker.lease.now())
    name = worker.lease.worker.id
    jump[0] = 100.0
    slow.buffer.close()
    await slow.dispatcher.run()
    assert worker.lease.worker.id != name
    assert len(slow.buffer) == len(fast.buffer) == 0


async def test_a_producer_that_reconciles_frees_nothing_that_another_is_claiming(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One producer's claim is committed and its lines are being read while another reconciles."""
    true_fetch, true_claim, true_unknown_spans = spans.fetch, spans.claim, spans.unknown_spans
    failures, failed, looked = iter([True]), asyncio.Event(), asyncio.Event()
    reading: list[bool] = []
    intrusions: list[str] = []
    executor = SlowForSome("none")

    async def claim(
        session: Session, worker: WorkerId, scope: Scope, limit: int, max_tasks: int | None
    ) -> list[Claim]:
        claims = await true_claim(session, worker, scope, limit, max_tasks)
        if claims and scope.keys == ("slow",) and next(failures, False):
            failed.set()
            raise StoreUnavailable("the answer was lost")
        return claims

    async def fetch(
        session: Session, worker_id: UUID, claims: Sequence[Claim], room: int | None
    ) -> list[Item]:
        items = await true_fetch(session, worker_id, claims, room)
        if failed.is_set() and not looked.is_set():
            reading.append(True)
            # Long enough for the other producer to look, if it could.
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await looked.wait()
            reading.clear()
        return items

    async def reconciler(session: Session, worker_id: UUID, known: Collection[int]) -> set[int]:
        looked.set()
        # Noted, not raised: the worker goes on and drains, and the test fails with this in seconds.
        if reading:
            intrusions.append("it reconciled while another producer had claims that it had not recorded yet")
        return await true_unknown_spans(session, worker_id, known)

    monkeypatch.setattr(spans, "unknown_spans", reconciler)
    monkeypatch.setattr(spans, "claim", claim)
    monkeypatch.setattr(spans, "fetch", fetch)
    batch = await a_batch(db, {"slow": 40, "fast": 40}, upstream=None)
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(drain=True, lease=30.0),
        Scope(),
        WorkerOptions(producers=PRODUCERS),
    )
    async with asyncio.timeout(120):
        await worker.run()
    assert (await read(db, batch)).completed == 80
    assert not intrusions, intrusions[0]
    assert looked.is_set()
    assert executor.done == {"slow": 40, "fast": 40}, "nothing is run twice"

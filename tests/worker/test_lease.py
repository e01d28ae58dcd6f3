"""A lease that was lost stays lost: others may have taken what this worker held."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence, no_fence
from batchline.files.objects import Objects
from batchline.model import Claim, Item, KeyLoad, Verdict
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.lease import Lease
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, read, sql, take
from tests.support.executors import Answering
from tests.support.waiting import wait_for

PATIENCE = 120


class Held(Answering):
    """Items wait until told; notes in whose name each was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.begun: list[object] = []
        self.on_begun = asyncio.Event()
        self._fence: Fence = no_fence

    async def run(self, item: Item) -> Verdict:
        self.begun.append(self._fence())
        self.on_begun.set()
        await self.go_on.wait()
        return await super().run(item)

    async def until_begun(self, count: int) -> None:
        while len(self.begun) < count:
            self.on_begun.clear()
            await self.on_begun.wait()

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence


def test_a_renewal_comes_too_late_for_a_lost_lease() -> None:
    now, dropped = [0.0], [0]

    def let_go() -> int:
        dropped[0] += 1
        return 7

    lease = Lease(WorkerSettings(lease=30.0), lambda: now[0], let_go)
    name = lease.sender()
    assert name is not None
    lease.renewed(0.0)
    now[0] = 23.0
    lease.renewed(20.0)
    assert lease.sender() == name
    now[0] = 44.5
    # Asked for in time, answered too late: in between nothing was ours for certain.
    lease.renewed(43.0)
    assert lease.lost
    assert lease.sender() is None
    lease.abandon()
    assert dropped == [1]
    assert lease.sender() not in (None, name)


@pytest.mark.parametrize("given_up", [False, True], ids=["renewed", "given up meanwhile"])
async def test_a_heartbeat_renews_from_its_request_and_only_the_name_in_its_request(
    database_url: str, monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """The database may have renewed the lease at any moment since it was asked, so the first one counts."""
    now, requested, heard = [0.0], list[UUID](), asyncio.Event()
    lease = Lease(settings := WorkerSettings(lease=30.0), lambda: now[0], lambda: 0)
    lease.renewed(0.0)
    true_renew = spans.renew

    async def renew(session: Session, worker: WorkerId, loads: Sequence[KeyLoad]) -> None:
        if requested:
            # The answer to the first has been heard.
            heard.set()
            await asyncio.Event().wait()
        requested.append(worker.id)
        await true_renew(session, worker, loads)
        now[0] = 9.0
        if given_up:
            lease.abandon()

    monkeypatch.setattr(spans, "renew", renew)
    async with Session(database_url, "test") as db:
        # It renews every hundredth of a second; the lease goes by the clock above.
        heartbeat = Heartbeat(db, lease, WorkerSettings(lease=0.03), lambda: True)
        now[0] = 5.0
        beating = asyncio.create_task(heartbeat.run())
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
        beating.cancel()
        await asyncio.wait([beating])
    assert lease.ends == (float("inf") if given_up else 5.0 + settings.fence_after)


@pytest.mark.parametrize("announced", [False, True], ids=["claim", "claim_new"])
async def test_a_claim_renews_the_lease_from_its_request(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    now = [5.0]
    true_claim, true_claim_new = spans.claim, spans.claim_new

    async def claim(
        session: Session, worker: WorkerId, scope: Scope, limit: int, max_tasks: int | None
    ) -> list[Claim]:
        claims = await true_claim(session, worker, scope, limit, max_tasks)
        now[0] = 9.0
        return claims

    async def claim_new(
        session: Session, worker: WorkerId, scope: Scope, batch_id: UUID, limit: int
    ) -> tuple[list[Claim], list[Item] | None]:
        claimed = await true_claim_new(session, worker, scope, batch_id, limit)
        now[0] = 9.0
        return claimed

    monkeypatch.setattr(spans, "claim", claim)
    monkeypatch.setattr(spans, "claim_new", claim_new)
    settings, batch = WorkerSettings(lease=30.0, concurrency=2), await a_batch(db, {"m": 2})
    objects = Objects.at(tmp_path / "objects")
    worker = Worker(database_url, Held(), objects, settings, Scope(), WorkerOptions(clock=lambda: now[0]))
    (producer,) = worker.producers
    producer.claimer._woken.clear()
    producer.claimer.idle.set()
    producer.claimer.announce(batch.id if announced else None)
    tasks = [asyncio.create_task(each.run()) for each in (producer.dispatcher, producer.claimer)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(wait_for, "a claim", lambda: producer.claimer.claimed > 0)
    assert worker.lease.ends == 5.0 + settings.fence_after
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for session in worker._sessions.values():
        await session.close()


async def test_the_heartbeat_abandons_a_lost_lease_even_if_the_database_would_renew_it(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    jump = [0.0]
    loop = asyncio.get_running_loop()
    executor = Held()
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=60.0, concurrency=2, drain=True),
        Scope(),
        WorkerOptions(clock=lambda: loop.time() + jump[0]),
    )
    batch = await a_batch(db, {"m": 6})
    name = worker.lease.worker.id
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until_begun(2)
        # As if it had been frozen for as long. All runners are busy: only the heartbeat can tell.
        jump[0] = 100.0
        worker._heartbeat.wake()
        await asyncio.to_thread(wait_for, "another name", lambda: worker.lease.worker.id != name)
        assert all(len(producer.buffer) == 0 for producer in worker.producers)
        executor.go_on.set()
    found = await read(db, batch)
    assert (found.completed, found.failed) == (6, 0)
    assert executor.begun[:2] == [name, name]
    assert name not in executor.begun[2:]
    assert None not in executor.begun


async def test_a_worker_that_lost_its_lease_claims_under_a_new_name(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    jump = [0.0]
    loop = asyncio.get_running_loop()
    worker = Worker(
        database_url,
        Held(),
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=30.0, concurrency=8),
        Scope(),
        WorkerOptions(clock=lambda: loop.time() + jump[0]),
    )
    await a_batch(db, {"m": 8})
    name = worker.lease.worker.id
    (producer,) = worker.producers
    # In flight, as far as it knows: its runners wait for more, and only the claimer can tell.
    await take(db, worker.lease.worker, 2)
    worker.lease.renewed(worker.lease.now())
    jump[0] = 100.0
    async with asyncio.timeout(PATIENCE):
        runners = asyncio.create_task(producer.dispatcher.run())
        claimer = asyncio.create_task(producer.claimer.run())
        await asyncio.to_thread(wait_for, "a claim", lambda: producer.claimer.claimed > 0)
    for task in (claimer, runners):
        task.cancel()
    await asyncio.gather(claimer, runners, return_exceptions=True)
    holders: dict[UUID, int] = dict(
        await sql(db, "SELECT worker_id, count(*) FROM batchline.spans GROUP BY worker_id")
    )
    assert worker.lease.worker.id != name
    assert set(holders) == {name, worker.lease.worker.id}
    for session in worker._sessions.values():
        await session.close()

"""The worker's own losses: what it claimed without knowing, what it may no longer send."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Claim, Item, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope, WorkerId
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, kill, read, sql, until
from tests.support.executors import Answering

# A lease that a machine which stops for some seconds does not lose.
SETTINGS = WorkerSettings(concurrency=4, drain=True, lease=60.0)


async def test_spans_whose_claim_got_lost_on_the_way_are_found_again(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, but its answer or its lines never arrive: the heartbeat would keep the spans
    alive for ever, and nobody would run them."""
    true_fetch, failures = spans.fetch, iter([True])

    async def fetch(
        session: Session, worker_id: UUID, claims: Sequence[Claim], room: int | None
    ) -> list[Item]:
        if next(failures, False):
            raise StoreUnavailable("the connection was cut")
        return await true_fetch(session, worker_id, claims, room)

    monkeypatch.setattr(spans, "fetch", fetch)
    executor = Answering()
    batch = await a_batch(db, {"m": 30})
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), SETTINGS, Scope())
    async with asyncio.timeout(120):
        await worker.run()
    assert (await read(db, batch)).completed == 30
    assert await sql(db, "SELECT count(*) FROM batchline.spans") == [(0,)]
    assert executor.lines == list(range(1, 31)), "each line is sent once"


async def test_a_worker_whose_lease_expired_sends_nothing_and_continues_under_a_new_name(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """Its own clock jumps past the lease while items wait to be sent, as that of a frozen process does."""
    jump = [0.0]
    workers: list[Worker] = []

    class Jumping(Answering):
        async def run(self, item: Item) -> Verdict:
            if len(workers[0].producers[0].buffer) > 3:
                jump[0] = 100.0
            return await super().run(item)

    executor = Jumping()
    loop = asyncio.get_running_loop()
    batch = await a_batch(db, {"m": 300})
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(concurrency=1, lease=60.0, poll_min=0.05, poll_max=0.5),
        Scope(),
        WorkerOptions(on_ended=lambda _: workers[0].stop(), clock=lambda: loop.time() + jump[0]),
    )
    workers.append(worker)
    first = worker.lease.worker

    async def expire() -> None:
        """The database ends the old lease too, once what was sent under it is settled."""
        await until(
            lambda: asyncio.sleep(0, worker.lease.worker is not first and worker.settler.idle.is_set())
        )
        await kill(db, first)

    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(expire())
        await worker.run()
    assert worker.lease.worker.id != first.id
    assert (await read(db, batch)).completed == 300
    assert executor.lines == list(range(1, 301)), "what was given up is sent once, by its new holder"


async def test_a_heartbeat_in_the_middle_of_a_claim_does_not_switch_off_the_fence(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are being read, so nothing seems to be held, and the heartbeat lays the lease to rest."""
    true_fetch, released, fenced = spans.fetch, asyncio.Event(), list[bool]()
    worker: Worker

    async def fetch(
        session: Session, worker_id: UUID, claims: Sequence[Claim], room: int | None
    ) -> list[Item]:
        items = await true_fetch(session, worker_id, claims, room)
        released.clear()
        worker._heartbeat.wake()
        await released.wait()
        return items

    monkeypatch.setattr(spans, "fetch", fetch)

    class Looking(Answering):
        async def run(self, item: Item) -> Verdict:
            fenced.append(worker.lease.ends < float("inf"))
            return await super().run(item)

    await a_batch(db, {"m": 3})
    settings = WorkerSettings(drain=True, lease=60.0)
    worker = Worker(database_url, Looking(), Objects.at(tmp_path / "objects"), settings, Scope())
    true_release = worker.lease.release

    def release() -> None:
        true_release()
        released.set()

    worker.lease.release = release  # type: ignore[method-assign]
    async with asyncio.timeout(120):
        await worker.run()
    assert fenced == [True] * 3


async def test_lines_that_arrive_after_the_name_was_abandoned_are_left_to_others(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is lost while the lines are being read: they are the old name's, and others may take them."""
    true_fetch, failures, executor = spans.fetch, iter([True]), Answering()
    names: list[UUID] = []
    worker: Worker
    killing: Session

    async def fetch(
        session: Session, worker_id: UUID, claims: Sequence[Claim], room: int | None
    ) -> list[Item]:
        items = await true_fetch(session, worker_id, claims, room)
        if next(failures, False):
            names.append(worker.lease.worker.id)
            worker.lease.abandon()
            assert not executor.sent
            await kill(killing, WorkerId(names[0], "", timedelta()))
        else:
            assert worker_id == worker.lease.worker.id != names[0]
        return items

    monkeypatch.setattr(spans, "fetch", fetch)
    killing = db
    batch = await a_batch(db, {"m": 30})
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), SETTINGS, Scope())
    async with asyncio.timeout(120):
        await worker.run()
    assert (await read(db, batch)).completed == 30
    assert executor.lines == list(range(1, 31)), "each line is sent once"


@pytest.mark.parametrize("with_bodies", [True, False], ids=["with the lines", "lines still to be read"])
async def test_a_new_batch_that_arrives_after_the_name_was_abandoned_is_left_to_others(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_bodies: bool
) -> None:
    """The lease is lost while an idle worker takes the first lines of a batch: they are the old name's."""
    true_claim_new, true_fetch, nothing_left = spans.claim_new, spans.fetch, asyncio.Event()
    worker: Worker
    executor, fetched = Answering(), list[UUID]()

    async def claim_new(
        session: Session, name: WorkerId, scope: Scope, batch_id: UUID, limit: int
    ) -> tuple[list[Claim], list[Item] | None]:
        claims, items = await true_claim_new(session, name, scope, batch_id, limit)
        assert len(claims) == 1
        assert items is not None
        assert len(items) == 3
        worker.lease.abandon()
        return claims, items if with_bodies else None

    async def fetch(session: Session, worker_id: UUID, claims: Sequence[Claim]) -> list[Item]:
        fetched.append(worker_id)
        return await true_fetch(session, worker_id, claims)

    monkeypatch.setattr(spans, "claim_new", claim_new)
    monkeypatch.setattr(spans, "fetch", fetch)
    batch = await a_batch(db, {"m": 3})
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), SETTINGS, Scope())
    (producer,) = worker.producers
    monkeypatch.setattr(producer.claimer, "_on_nothing", nothing_left.set)
    old_name = worker.lease.worker.id
    # As an idle worker hears of it.
    producer.claimer._woken.clear()
    producer.claimer.idle.set()
    producer.claimer.announce(batch.id)
    tasks = [asyncio.create_task(each.run()) for each in (producer.dispatcher, producer.claimer)]
    async with asyncio.timeout(120):
        await nothing_left.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert worker.lease.worker.id != old_name
    assert producer.claimer.claimed == 0, "nothing of it reaches the buffer"
    assert worker.lease.ends == float("inf"), "the new name holds nothing, and was never renewed"
    assert await sql(db, "SELECT worker_id FROM batchline.spans") == [(old_name,)]
    for session in worker._sessions.values():
        await session.close()
    assert (executor.sent, fetched) == ([], [])

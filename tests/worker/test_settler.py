"""The settler alone: when it settles, and when it is idle."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.model import Settled, TaskParked, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import OnLate, Scope
from batchline.upstreams.memory import BodyMemory
from batchline.worker.lease import Lease
from batchline.worker.settler import Settler
from tests.support.builders import LATER, a_batch, completed, read, retry, take

PATIENCE = 120.0
# It does not settle because of the time that has passed.
PATIENT = WorkerSettings(settle_after=3600.0)


class Reported:
    def __init__(self) -> None:
        self.batches: list[UUID] = []
        self.delays: list[float | None] = []

    def __call__(self, settled: Sequence[Settled], earliest_retry: float | None) -> None:
        self.batches += [row.batch_id for row in settled if row.finished]
        self.delays.append(earliest_retry)


@asynccontextmanager
async def a_settler(
    db: Session, settings: WorkerSettings = PATIENT
) -> AsyncIterator[tuple[Settler, Lease, Reported]]:
    lease, reported = Lease(settings, lambda: 0.0, lambda: 0), Reported()
    settler = Settler(db, lease, settings, BodyMemory(settings.body_memory), reported)
    running = asyncio.create_task(settler.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield settler, lease, reported
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("how", ["wake", "stop", "enough"])
async def test_it_settles_when_woken_when_stopped_and_when_there_are_enough(db: Session, how: str) -> None:
    settings = WorkerSettings(settle_after=3600.0, settle_max=2) if how == "enough" else PATIENT
    batch = await a_batch(db, 2)
    async with a_settler(db, settings) as (settler, lease, reported):
        assert settler.idle.is_set()
        for item in await take(db, lease.worker):
            settler.add(completed(item))
        assert not settler.idle.is_set()
        if how != "enough":
            getattr(settler, how)()
        await settler.idle.wait()
        assert settler.unsettled == 0
        assert reported.batches == [batch.id]
    assert (await read(db, batch)).completed == 2


async def test_it_is_not_idle_before_others_have_heard_of_the_settle(db: Session) -> None:
    await a_batch(db, 1)
    async with a_settler(db) as (settler, lease, _):
        idle = list[bool]()
        settler._on_settled = lambda settled, earliest_retry: idle.append(settler.idle.is_set())
        (item,) = await take(db, lease.worker)
        settler.add(completed(item))
        settler.wake()
        await settler.idle.wait()
        assert idle == [False]


async def test_a_verdict_that_could_not_be_settled_is_kept(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_settle, failures = spans.settle, iter([True])

    async def settle(
        session: Session, worker_id: UUID, verdicts: Sequence[Verdict], on_late: OnLate
    ) -> list[Settled]:
        if next(failures, False):
            assert not settlers[0].idle.is_set()
            raise StoreUnavailable("away")
        return await true_settle(session, worker_id, verdicts, on_late)

    monkeypatch.setattr(spans, "settle", settle)
    settlers = list[Settler]()
    batch = await a_batch(db, 1)
    async with a_settler(db) as (settler, lease, _):
        settlers.append(settler)
        (item,) = await take(db, lease.worker)
        settler.add(completed(item))
        settler.wake()
        await settler.idle.wait()
    assert (await read(db, batch)).completed == 1


async def test_it_reports_the_first_retry_and_no_task_that_is_polled_much_later(db: Session) -> None:
    await a_batch(db, 3)
    async with a_settler(db) as (settler, lease, reported):
        first, second, third = await take(db, lease.worker)
        for verdict in (retry(first, 800.0), retry(second, 400.0), TaskParked(third, "task", LATER)):
            settler.add(verdict)
        settler.wake()
        await settler.idle.wait()
        assert reported.delays == [400.0]
    assert await take(db, lease.worker, scope=Scope()) == []

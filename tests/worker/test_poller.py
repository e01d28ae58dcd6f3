"""The poller alone: when it polls, and whom it tells what it found."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec.structs import replace

from batchline.config.settings import WorkerSettings
from batchline.model import PollResult
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.lease import Lease
from batchline.worker.poller import Poller
from tests.support.builders import LATER, a_batch, a_worker, pass_time, retry, run_to_the_end, sql, take

PATIENCE = 120.0
# Nothing but a wake-up makes it poll during a test.
RARELY = WorkerSettings(poll_min=3600.0, poll_max=3600.0)


@asynccontextmanager
async def a_poller(
    db: Session, settings: WorkerSettings = RARELY
) -> AsyncIterator[tuple[Poller, list[PollResult]]]:
    results = list[PollResult]()
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    lease = Lease(settings, lambda: 0.0, lambda: 0)
    poller = Poller(db, lease, Scope(), settings, results.append)
    running = asyncio.create_task(poller.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield poller, results
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_it_polls_when_woken_and_reports_what_it_found(db: Session) -> None:
    async with a_poller(db) as (poller, results):
        assert not await poller.sees_work(now=True)
        assert not results[-1].claimable
        await a_batch(db, 1)
        assert await poller.sees_work(now=True)
        assert results[-1].claimable


async def test_polling_is_not_work_that_a_drain_waits_for(db: Session) -> None:
    async with a_poller(db) as (poller, _):
        poller.wake()
        assert poller.idle.is_set()


@pytest.mark.parametrize(("delay", "soon"), [(30.0, True), (LATER, False)])
async def test_only_a_retry_that_comes_due_soon_is_worth_waiting_for(
    db: Session, delay: float, soon: bool
) -> None:
    await a_batch(db, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [retry(item, delay)])
    async with a_poller(db) as (poller, _):
        assert await poller.sees_work(now=True) is soon


async def test_it_polls_by_itself_when_something_comes_due(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_batch(db, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [retry(item, 30.0)])
    true_poll, first, due = spans.poll, iter([True]), list[float | None]()

    async def poll(
        session: Session, worker_id: UUID, scope: Scope, hooks: Sequence[str], *_: object
    ) -> PollResult:
        """After the first one, the 30 s pass in a moment."""
        result = await true_poll(session, worker_id, scope, hooks)
        if not next(first, False):
            return result
        await pass_time(db)
        due.append(result.next_due)
        return replace(result, next_due=0.1)

    monkeypatch.setattr(spans, "poll", poll)
    async with a_poller(db) as (poller, results):
        assert await poller.sees_work(now=True)
        assert not results[-1].claimable
        assert due == [pytest.approx(15.0, abs=15.0)]
        assert await poller.sees_work(now=False)
        assert results[-1].claimable
        await run_to_the_end(db, worker)


async def test_an_unreachable_database_counts_as_work_left(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def poll(
        session: Session, worker_id: UUID, scope: Scope, hooks: Sequence[str], *_: object
    ) -> PollResult:
        raise StoreUnavailable("away")

    monkeypatch.setattr(spans, "poll", poll)
    async with a_poller(db) as (poller, results):
        assert await poller.sees_work(now=True)
        assert results == []


async def test_a_long_pause_becomes_a_short_one_as_soon_as_a_claim_has_found_work(db: Session) -> None:
    """Not only the pause after it: without notifications, a second batch waited for the rest of 15 s."""
    settings = WorkerSettings(poll_min=0.02, poll_max=3600.0)
    async with a_poller(db, settings) as (poller, results):
        # As after many polls that found nothing: the pause after the next one is an hour.
        poller._interval = 3600.0
        await poller.sees_work(now=False)
        before = len(results)
        poller.reset()
        await asyncio.sleep(0)
        assert len(results) == before, "it does not poll at once"
        await poller.sees_work(now=False)
        assert len(results) == before + 1


async def test_claims_that_follow_each_other_do_not_put_off_the_next_poll(db: Session) -> None:
    settings = WorkerSettings(poll_min=0.2, poll_max=3600.0)
    async with a_poller(db, settings) as (poller, results):
        waiting = asyncio.create_task(poller.sees_work(now=False))
        while not waiting.done():
            poller.reset()
            await asyncio.sleep(0.01)
        assert results

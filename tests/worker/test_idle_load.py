"""What an idle worker asks of the database: less and less, and maintenance seldom."""

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.model import PollResult
from batchline.store import maintenance, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.lease import Lease
from batchline.worker.poller import Poller
from tests.support.builders import a_batch, a_worker, sql
from tests.support.virtual_time import VirtualTimeLoop

NOTHING = PollResult(False, False, False, None, None, False)
MINUTE = 60.0
# A pause is longer than its interval by up to a fifth, at random.
JITTER = 1.2


@pytest.fixture
def polled_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the database was polled; it never has work."""
    times: list[float] = []

    async def poll(session: Session, worker_id: UUID, scope: Scope, *_: object) -> PollResult:
        times.append(asyncio.get_running_loop().time())
        return NOTHING

    monkeypatch.setattr(spans, "poll", poll)
    return times


async def idle(seconds: float, *, found_work_after: float | None = None) -> None:
    """With the default settings, for so long."""
    settings = WorkerSettings()
    lease = Lease(settings, lambda: 0.0, lambda: 0)
    poller = Poller(Session("postgresql://nowhere", "test"), lease, Scope(), settings, lambda result: None)
    running = asyncio.create_task(poller.run())
    if found_work_after is not None:
        asyncio.get_running_loop().call_later(found_work_after, poller.wake)
    await asyncio.wait([running], timeout=seconds)
    running.cancel()
    await asyncio.wait([running])


def test_an_idle_worker_polls_after_750_ms_and_then_after_twice_as_long_each_time_up_to_15_s(
    polled_at: list[float],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(idle(10 * MINUTE))
    pauses = [later - earlier for earlier, later in pairwise(polled_at)]
    expected = [0.75, 1.5, 3.0, 6.0, 12.0, *[15.0] * (len(pauses) - 5)]
    assert len(pauses) > 30
    for pause, interval in zip(pauses, expected, strict=True):
        assert interval <= pause + 0.01
        assert pause <= interval * JITTER + 0.01


def test_an_idle_worker_sends_at_most_four_queries_per_minute(polled_at: list[float]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(idle(60 * MINUTE))
    # It slows down in the first half minute.
    later = [at for at in polled_at if at > MINUTE / 2]
    assert len(later) <= 4 * 59.5


def test_a_worker_that_has_found_work_polls_after_750_ms_again(polled_at: list[float]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(idle(11 * MINUTE, found_work_after=10 * MINUTE))
    woken, following = [at for at in polled_at if at >= 10 * MINUTE][:2]
    assert woken == pytest.approx(10 * MINUTE, abs=0.01)
    assert following - woken <= 0.75 * JITTER + 0.01


async def test_a_poll_locks_no_row_and_waits_for_nobody(db: Session, database_url: str) -> None:
    await a_batch(db, 3)
    async with Session(database_url, "holder") as holder, holder.transaction() as connection:
        # Readers may pass; whoever locks a row has to wait.
        await connection.execute(
            b"LOCK TABLE batchline.batches, batchline.lanes, batchline.spans, batchline.workers,"
            b" batchline.maintenance_tasks, batchline.outbox IN EXCLUSIVE MODE"
        )
        assert (await asyncio.wait_for(spans.poll(db, a_worker().id, Scope()), MINUTE)).claimable


async def test_a_maintenance_task_is_due_again_in_five_to_ten_minutes_at_random(db: Session) -> None:
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() - interval '1 second'")
    while await maintenance.take_task(db) is not None:
        pass
    pauses = [
        seconds
        for (seconds,) in await sql(
            db, "SELECT extract(epoch FROM due_at - ran_at)::float8 FROM batchline.maintenance_tasks"
        )
    ]
    assert len(pauses) >= 4
    assert all(300 <= seconds <= 600 for seconds in pauses)
    assert len(set(pauses)) == len(pauses)

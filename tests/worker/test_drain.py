"""A worker that drains waits for idle services and for what comes due, and asks the database only then."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Batch, BatchStatus, Item, PollResult, Retried, Verdict
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.drain import Drain
from batchline.worker.pause import Pause
from batchline.worker.relay.relays import Relays
from batchline.worker.worker import Worker
from tests.support.builders import a_batch, a_worker, deferred, overrun, read, sql, take
from tests.support.executors import Answering
from tests.support.waiting import eventually

PATIENCE = 120.0
# Nothing but what the database says makes it poll.
DRAIN = WorkerSettings(drain=True, poll_min=3600.0, poll_max=3600.0)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[PollResult]:
    """The results of all polls."""
    results, true_poll = list[PollResult](), spans.poll

    async def poll(
        session: Session, worker_id: UUID, scope: Scope, hooks: Sequence[str], *_: object
    ) -> PollResult:
        results.append(await true_poll(session, worker_id, scope, hooks))
        return results[-1]

    monkeypatch.setattr(spans, "poll", poll)
    return results


async def drain(url: str, tmp_path: Path, executor: Answering) -> None:
    async with asyncio.timeout(PATIENCE):
        await Worker(url, executor, Objects.at(tmp_path), DRAIN, Scope()).run()


async def nothing_to_maintain(db: Session) -> None:
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")


async def test_a_worker_with_nothing_to_do_leaves_after_a_few_polls(
    database_url: str, db: Session, tmp_path: Path, polls: list[PollResult]
) -> None:
    await nothing_to_maintain(db)
    await drain(database_url, tmp_path, Answering())
    assert 1 <= len(polls) <= 3, "the poller's first, the drain's, and one more if it begins to listen then"


async def test_a_slow_request_costs_no_polls(
    database_url: str, db: Session, tmp_path: Path, polls: list[PollResult]
) -> None:
    class Slow(Answering):
        async def run(self, item: Item) -> Verdict:
            # Not a wait for a fact: the time is the subject. A drain that polled meanwhile would poll often.
            await asyncio.sleep(1.0)
            return await super().run(item)

    await nothing_to_maintain(db)
    batch = await a_batch(db, 1)
    await drain(database_url, tmp_path, Slow())
    assert (await read(db, batch)).status is BatchStatus.COMPLETED
    assert len(polls) <= 5


async def test_it_waits_for_its_own_retry(
    database_url: str, db: Session, tmp_path: Path, polls: list[PollResult]
) -> None:
    class Second(Answering):
        async def run(self, item: Item) -> Verdict:
            if item.claim.attempt == 1:
                return Retried(item, "busy", "try again", 1.0)
            return await super().run(item)

    await nothing_to_maintain(db)
    batch = await a_batch(db, 1)
    await drain(database_url, tmp_path, Second())
    assert (await read(db, batch)).status is BatchStatus.COMPLETED
    assert len(polls) <= 6


async def test_it_waits_for_what_another_worker_has_put_off(
    database_url: str, db: Session, tmp_path: Path, polls: list[PollResult]
) -> None:
    await nothing_to_maintain(db)
    batch, other = await a_batch(db, 1), a_worker()
    (item,) = await take(db, other)
    await spans.settle(db, other.id, [deferred(item, 1.0)])
    await drain(database_url, tmp_path, Answering())
    assert (await read(db, batch)).status is BatchStatus.COMPLETED
    assert len(polls) <= 6


async def test_it_waits_without_a_pause_for_the_poll_that_is_due(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that came and went during a pause was missed: the drain waited for the one after it."""
    acts: list[str] = []

    class DuePoller:
        only_claimable = False

        async def sees_work(self, *, now: bool) -> bool:
            acts.append("poll" if now else "wait for the poll that is due")
            return len(acts) == 1

    class NoProducers(list[Any]):
        claimed = 0

    async def pause(_: Pause) -> None:
        acts.append("pause")

    monkeypatch.setattr(Pause, "wait", pause)
    relays = Relays([], db, Upstreams())
    await Drain(db, Scope(), cast(Any, DuePoller()), cast(Any, NoProducers()), relays, lambda: []).wait()
    assert acts == ["poll", "wait for the poll that is due"]


async def test_it_runs_the_maintenance_that_is_due_and_ends_the_batch_that_this_closes(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 1)
    await overrun(db, batch.id)
    await drain(database_url, tmp_path, Answering())
    assert (await read(db, batch)).status is BatchStatus.EXPIRED


async def test_a_batch_that_comes_during_the_last_poll_is_run(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll finds nothing, and before its result is used, a notification wakes the claimer."""
    true_poll, listening, announced = spans.poll, asyncio.Event(), asyncio.Event()
    executor, created = Answering(), list[Batch]()
    await nothing_to_maintain(db)
    worker = Worker(database_url, executor, Objects.at(tmp_path), DRAIN, Scope())
    (claimer,) = worker.producers.claimers
    true_announce = claimer.announce

    def announce(batch_id: UUID | None) -> None:
        true_announce(batch_id)
        (listening if batch_id is None else announced).set()

    async def poll(
        session: Session, worker_id: UUID, scope: Scope, hooks: Sequence[str], *_: object
    ) -> PollResult:
        result = await true_poll(session, worker_id, scope, hooks)
        await listening.wait()
        if not created:
            await claimer.idle.wait()
            created.append(await a_batch(db, 3))
            await announced.wait()
        return result

    monkeypatch.setattr(claimer, "announce", announce)
    monkeypatch.setattr(spans, "poll", poll)
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    assert (await read(db, created[0])).status is BatchStatus.COMPLETED
    assert executor.lines == [1, 2, 3]


# A connection counts its last transactions before it disappears from the list of activities.
TRANSACTIONS = """
SELECT xact_commit + xact_rollback
FROM pg_stat_database AS d
WHERE d.datname = %(name)s
  AND NOT EXISTS (
      SELECT FROM pg_stat_activity AS a WHERE a.datname = d.datname AND a.backend_type = 'client backend'
  )
"""


async def test_it_sends_few_queries_while_a_retry_is_due_within_a_minute(
    database_url: str, server_url: str, db: Session, tmp_path: Path
) -> None:
    """Counted by the server, and read from another database, so that reading does not count."""
    name = conninfo_to_dict(database_url)["dbname"]

    async def transactions() -> int:
        """As soon as nobody is connected."""
        await db.close()
        with psycopg.connect(server_url, autocommit=True) as elsewhere:
            (number,) = await eventually(
                "connections to end", lambda: elsewhere.execute(TRANSACTIONS, {"name": name}).fetchone()
            )
        return int(number)

    async def drained(delay: float) -> int:
        """How many transactions it takes if the one item is due after so many seconds."""
        batch, other = await a_batch(db, 1), a_worker()
        (item,) = await take(db, other)
        await spans.settle(db, other.id, [deferred(item, delay)])
        before, settings = await transactions(), WorkerSettings(drain=True)
        async with asyncio.timeout(PATIENCE):
            await Worker(database_url, Answering(), Objects.at(tmp_path), settings, Scope()).run()
        taken = await transactions() - before
        assert (await read(db, batch)).status is BatchStatus.COMPLETED
        return taken

    await nothing_to_maintain(db)
    waited, at_once = await drained(5.0), await drained(0.0)
    # Some 10: it polls after 0.75 s, 1.5 s and so on. To poll until the item is due would take hundreds.
    assert waited - at_once < 30

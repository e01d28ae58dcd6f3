"""An idle worker that hears of a new batch takes its first lines with one small statement."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Batch, Claim, Item, PollResult
from batchline.store import batches, spans
from batchline.store.events import Event
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from batchline.worker.notification_router import NotificationRouter
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, a_worker, complete, overrun, read, sql, take
from tests.support.executors import Answering


async def first_of(
    db: Session, batch: Batch, *, worker: WorkerId | None = None, limit: int = 10, scope: Scope | None = None
) -> list[Item]:
    claims, items = await spans.claim_new(db, worker or a_worker(), scope or Scope(), batch.id, limit)
    assert items is not None
    assert sum(claim.size for claim in claims) == len(items)
    return items


async def test_the_first_lines_come_with_their_bodies(db: Session) -> None:
    batch = await a_batch(db, {"m": 5})
    worker = a_worker()

    items = await first_of(db, batch, worker=worker, limit=3)

    assert [(item.line_no, item.custom_id, item.body) for item in items] == [
        (n, b"line-%d" % n, b'{"line": %d}' % n) for n in (1, 2, 3)
    ]
    (later,) = {item.claim.span_id for item in items}
    assert await sql(db, "SELECT id, worker_id FROM batchline.spans") == [(later, worker.id)]
    assert await sql(db, "SELECT id FROM batchline.workers WHERE lease_until > now()") == [(worker.id,)]
    assert [item.line_no for item in await take(db, worker)] == [4, 5]


async def test_claim_new_returns_the_same_claim_fields_as_claim(db: Session) -> None:
    batch = await a_batch(db, {"m": 2})

    (one,) = await first_of(db, batch, limit=1)
    (other,) = await take(db, a_worker())

    def reported(claim: Claim) -> tuple[object, ...]:
        return claim.batch_id, claim.attempt, claim.task_id, claim.size, claim.url, claim.model, claim.key

    assert reported(one.claim) == reported(other.claim)
    assert one.claim.settings == other.claim.settings
    assert one.claim.seconds_left == pytest.approx(other.claim.seconds_left, abs=60)


async def test_the_whole_batch_can_be_taken_and_ends(db: Session) -> None:
    batch = await a_batch(db, {"m": 4})
    worker = a_worker()
    await complete(db, worker, await first_of(db, batch, worker=worker))
    assert (await read(db, batch)).finalizing_at is not None
    assert await first_of(db, batch) == []


@pytest.mark.parametrize("why", ["closed", "late", "paused", "another key"])
async def test_claim_new_takes_nothing_from_a_batch_that_the_worker_may_not_run(
    db: Session, why: str
) -> None:
    batch = await a_batch(db, {"m": 4})
    match why:
        case "closed":
            await batches.close(db, batch.id, "cancel")
        case "paused":
            await batches.close(db, batch.id, "pause")
        case "late":
            await overrun(db, batch.id)
    scope = Scope(keys=("other",)) if why == "another key" else None

    assert await first_of(db, batch, scope=scope) == []
    assert await sql(db, "SELECT count(*) FROM batchline.spans") == [(0,)]
    assert await sql(db, "SELECT count(*) FROM batchline.workers") == [(0,)]


async def test_of_two_workers_at_once_one_gets_it_and_the_other_does_not_wait(
    database_url: str, db: Session
) -> None:
    batch = await a_batch(db, {"m": 4})
    async with Session(database_url, "neighbour") as neighbour, db.transaction() as connection:
        await connection.execute("SELECT FROM batchline.lanes FOR UPDATE")
        assert await first_of(neighbour, batch) == []


async def test_large_bodies_are_left_to_be_fetched(db: Session) -> None:
    batch = await a_batch(db, {"m": 4})
    await sql(db, "UPDATE batchline.lines SET body = repeat('x', 20000)")
    worker = a_worker()

    claims, items = await spans.claim_new(db, worker, Scope(), batch.id, 4)

    assert items is None
    assert [len(item.body) for item in await spans.fetch(db, worker.id, claims)] == [20_000] * 4


async def test_a_span_whose_lines_are_gone_is_heard_of(db: Session) -> None:
    batch = await a_batch(db, {"m": 2})
    await sql(db, "DELETE FROM batchline.lines")
    claims, _ = await spans.claim_new(db, a_worker(), Scope(), batch.id, 4)
    assert [claim.size for claim in claims] == [2]


async def test_an_idle_worker_runs_what_it_hears_of_and_looks_for_more(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More lines than the quick look takes, and a second batch that is announced while the first runs."""
    quick: list[UUID] = []
    true_claim_new = spans.claim_new

    async def claim_new(
        session: Session, worker: WorkerId, scope: Scope, batch_id: UUID, limit: int
    ) -> tuple[list[Claim], list[Item] | None]:
        quick.append(batch_id)
        return await true_claim_new(session, worker, scope, batch_id, limit)

    monkeypatch.setattr(spans, "claim_new", claim_new)
    executor, ended, idle = Answering(), asyncio.Semaphore(0), asyncio.Event()
    listening, true_heard = asyncio.Event(), NotificationRouter.heard

    def heard(self: NotificationRouter, event: Event) -> None:
        if event.kind == "listening":
            listening.set()
        true_heard(self, event)

    monkeypatch.setattr(NotificationRouter, "heard", heard)
    true_claim = spans.claim

    async def claim(
        session: Session, worker: WorkerId, scope: Scope, limit: int, max_tasks: int | None
    ) -> list[Claim]:
        """The last fruitless claim before the worker waits is made because it listens from now on."""
        listens = listening.is_set()
        claims = await true_claim(session, worker, scope, limit, max_tasks)
        if not claims and listens:
            idle.set()
        return claims

    true_poll, polled = spans.poll, asyncio.Event()

    async def poll(
        session: Session, worker_id: UUID, scope: Scope, hooks: Sequence[str], *_: object
    ) -> PollResult:
        result = await true_poll(session, worker_id, scope, hooks)
        polled.set()
        return result

    monkeypatch.setattr(spans, "claim", claim)
    monkeypatch.setattr(spans, "poll", poll)
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(concurrency=100, poll_min=60.0, poll_max=60.0),
        Scope(),
        WorkerOptions(on_ended=lambda _: ended.release()),
    )
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(120):
        await idle.wait()
        # The only poll: it must not find what the worker is about to hear of.
        await polled.wait()
        first = await a_batch(db, {"m": 150})
        second = await a_batch(db, {"m": 20})
        await ended.acquire()
        await ended.acquire()
        worker.stop()
        await running
    assert quick[:1] == [first.id]
    assert (await read(db, second)).completed == 20
    assert len(executor.sent) == 170

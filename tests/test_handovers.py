"""A worker that stands by: what it is handed it runs, once, whatever gets lost or comes late."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config import WorkerSettings
from batchline.engine.objects import Objects
from batchline.ids import new_id
from batchline.model import Batch, Claim, Item, Verdict
from batchline.store import batches, events, spans
from batchline.store.events import Event
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from batchline.store.statements import Statement
from batchline.worker.clock import Clock, steady
from batchline.worker.worker import Worker
from tests.builders import (
    a_batch,
    a_worker,
    completed,
    equals,
    held,
    kill,
    on,
    read,
    sql,
    standing,
    take,
    until,
)
from tests.executing import Answering

PATIENCE = 60.0


class AnsweringWhenLet(Answering):
    """Answers at once, unless it is held up; tells when a line is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def run(self, item: Item) -> Verdict:
        verdict = await super().run(item)
        self.begun.release()
        await self.go_on.wait()
        return verdict


class Scene:
    """A worker in this process that has heard of a first batch, and stands by."""

    def __init__(self, url: str, folder: Path, clock: Clock = steady) -> None:
        self.url = url
        self.executor = AnsweringWhenLet()
        self.ended = asyncio.Semaphore(0)
        self.worker = Worker(
            url,
            self.executor,
            Objects.at(folder / "objects"),
            WorkerSettings(poll_least=300.0, poll_most=300.0, lease=300.0),
            Scope(),
            on_ended=lambda _: self.ended.release(),
            clock=clock,
        )
        self.running = asyncio.create_task(self.worker.run())

    async def stands_by(self, db: Session) -> None:
        async def fact() -> bool:
            assert not self.running.done()
            return bool(await standing(db))

        await until(fact)

    async def has_run(self, db: Session, batch: Batch) -> Batch:
        await self.ended.acquire()
        return await read(db, batch)

    async def begin(self, db: Session) -> None:
        """One batch is run, so that all its connections are there."""
        await self.stands_by(db)
        first = await a_batch(db, 1)
        assert (await self.has_run(db, first)).completed == 1
        await self.stands_by(db)

    async def stop(self) -> None:
        self.worker.stop()
        await self.running


def test_a_worker_that_stands_by_runs_what_it_is_handed_and_claims_the_rest(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[UUID] = []
    true_claim, true_new = spans.claim, spans.claim_new

    async def claim(session: Session, worker: WorkerId, scope: Scope, limit: int) -> list[Claim]:
        claims = await true_claim(session, worker, scope, limit)
        claimed.extend(claim.batch_id for claim in claims)
        return claims

    async def claim_new(
        session: Session, worker: WorkerId, scope: Scope, batch_id: UUID, limit: int
    ) -> tuple[list[Claim], list[Item] | None]:
        claims, items = await true_new(session, worker, scope, batch_id, limit)
        claimed.extend(claim.batch_id for claim in claims)
        return claims, items

    monkeypatch.setattr(spans, "claim", claim)
    monkeypatch.setattr(spans, "claim_new", claim_new)

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            await scene.begin(db)
            small = await a_batch(db, 5)
            assert (await scene.has_run(db, small)).completed == 5
            await scene.stands_by(db)
            large = await a_batch(db, 500)
            assert (await scene.has_run(db, large)).completed == 500
            await scene.stop()
        assert small.id not in claimed, "all of it was handed over"
        assert large.id in claimed
        assert len(scene.executor.sent) == len(set(scene.executor.sent)) == 506

    on(database_url, scenario)


def test_what_comes_too_late_for_the_lease_is_not_sent_but_claimed_anew(
    database_url: str, tmp_path: Path
) -> None:
    """The process was frozen between its word and the notification, for longer than others wait."""
    jump, took_up = [0.0], list[bool]()

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path, lambda: asyncio.get_running_loop().time() + jump[0])
            await scene.begin(db)
            lease, true_take_up = scene.worker.lease, scene.worker.lease.take_up

            def take_up(said: float) -> bool:
                # As the heartbeat does: so nothing but the age of its word can tell that it is late.
                lease.rest()
                jump[0] = 290.0
                took_up.append(true_take_up(said))
                return took_up[-1]

            lease.take_up = take_up  # type: ignore[method-assign]
            batch = await a_batch(db, 5)
            assert (await scene.has_run(db, batch)).completed == 5
            await scene.stop()
        assert took_up == [False]
        assert len(scene.executor.sent) == len(set(scene.executor.sent)) == 6

    on(database_url, scenario)


def test_what_was_handed_over_unheard_is_found_when_the_worker_listens_again(
    database_url: str, tmp_path: Path
) -> None:
    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            await scene.begin(db)
            missed = deaf_to_handovers(scene.worker)
            batch = await a_batch(db, 5)
            await missed.wait()
            assert await held(db) == [(scene.worker.lease.worker.id, 5)]
            await sql(
                db,
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name = 'batchline listener' AND datname = current_database()
                """,
            )
            assert (await scene.has_run(db, batch)).completed == 5
            await scene.stop()
        assert len(scene.executor.sent) == len(set(scene.executor.sent)) == 6

    on(database_url, scenario)


def test_a_batch_that_was_handed_over_and_paused_goes_on_when_it_is_resumed(
    database_url: str, tmp_path: Path
) -> None:
    """Word that a batch is open comes again then, and is not the one that comes with what was handed over."""

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            await scene.begin(db)
            await scene.executor.begun.acquire()
            scene.executor.go_on.clear()
            batch = await a_batch(db, 1_000)
            await scene.executor.begun.acquire()
            await batches.close(db, batch.id, "pause")
            scene.executor.go_on.set()
            await until(lambda: equals(held_by_somebody(db), 0))
            await batches.resume(db, batch.id)
            assert (await scene.has_run(db, batch)).completed == 1_000
            await scene.stop()

    on(database_url, scenario)


async def held_by_somebody(db: Session) -> int:
    return sum(worker_id is not None for worker_id, _ in await held(db))


def deaf_to_handovers(worker: Worker) -> asyncio.Event:
    """What is handed to the worker gets lost from now on; set when something was."""
    true_heard, missed = worker._listener._on_event, asyncio.Event()

    def heard(event: Event) -> None:
        if event.kind == "handed":
            missed.set()
        else:
            true_heard(event)

    worker._listener._on_event = heard
    return missed


def test_what_was_handed_over_unheard_is_found_by_comparing(database_url: str, tmp_path: Path) -> None:
    """Nothing tells the worker that it missed something, but for its own polls."""

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            await scene.begin(db)
            missed = deaf_to_handovers(scene.worker)
            batch = await a_batch(db, 5)
            await missed.wait()
            assert await held(db) == [(scene.worker.lease.worker.id, 5)]
            ended = asyncio.create_task(scene.has_run(db, batch))
            while not ended.done():
                scene.worker.attendant.call()
                await asyncio.wait([ended], timeout=0.02)
            assert (await ended).completed == 5
            await scene.stop()
        assert len(scene.executor.sent) == len(set(scene.executor.sent)) == 6

    on(database_url, scenario)


def test_a_late_hand_over_does_not_cost_the_lease(database_url: str, tmp_path: Path) -> None:
    """It comes 205 s after the worker's word, under a lease of 300 that it gives up at 240; the next
    heartbeat would come later than that."""
    jump = [0.0]

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path, lambda: asyncio.get_running_loop().time() + jump[0])
            await scene.begin(db)
            await scene.executor.begun.acquire()
            lease = scene.worker.lease
            lease.rest()
            jump[0] = 205.0
            scene.executor.go_on.clear()
            await a_batch(db, 1)
            await scene.executor.begun.acquire()
            now = asyncio.get_running_loop().time()
            await until(lambda: equals(asyncio.sleep(0, lease.ends > now + 205.0 + 239.0), True))
            scene.executor.go_on.set()
            await scene.stop()

    on(database_url, scenario)


def test_what_was_taken_over_in_a_gap_of_the_lease_is_not_sent(database_url: str, tmp_path: Path) -> None:
    """The notification is late; the lease ends, another takes over; the worker stands by anew, and hears."""
    jump = [0.0]

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path, lambda: asyncio.get_running_loop().time() + jump[0])
            await scene.begin(db)
            worker, other, late = scene.worker, a_worker(), list[Event]()
            worker.lease.rest()
            true_heard = worker._listener._on_event
            worker._listener._on_event = late.append
            batch = await a_batch(db, 5)
            # The end of the first batch may be told among them.
            await until(
                lambda: equals(asyncio.sleep(0, {"handed", "open"} - {told.kind for told in late}), set())
            )
            await kill(db, worker.lease.worker)
            jump[0] = 310.0
            taken = await take(db, other)
            assert len(taken) == 5
            worker.attendant.call()
            await scene.stands_by(db)
            for event in late:
                true_heard(event)
            await spans.settle(db, other.id, [completed(item) for item in taken])
            await scene.stop()
        assert (await read(db, batch)).completed == 5
        assert len(scene.executor.sent) == 1, "that was the first batch"

    on(database_url, scenario)


def test_a_worker_that_stops_gives_back_what_it_did_not_stay_to_hear(
    database_url: str, tmp_path: Path
) -> None:
    """It is told to stop, and waits for a request that is under way; what it was handed does not wait."""

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            await scene.begin(db)
            await scene.executor.begun.acquire()
            missed = deaf_to_handovers(scene.worker)
            unheard = await a_batch(db, 3)
            await missed.wait()
            scene.executor.go_on.clear()
            slow = await a_batch(db, 1)
            await scene.executor.begun.acquire()
            query = "SELECT worker_id IS NULL FROM spans WHERE batch_id = %(batch)s"
            assert await sql(db, query, batch=unheard.id) == [(False,)]
            scene.worker.stop()
            await until(lambda: equals(sql(db, query, batch=unheard.id), [(True,)]))
            assert not scene.running.done()
            scene.executor.go_on.set()
            await scene.running
        assert (await read(db, slow)).completed == 1
        assert len(await take(db, a_worker())) == 3

    on(database_url, scenario)


@pytest.mark.parametrize(
    ("settings", "scope", "stands_by"),
    [
        (WorkerSettings(), Scope(), True),
        (WorkerSettings(), Scope(keys=("m",)), True),
        (WorkerSettings(max_seconds=PATIENCE), Scope(), False),
        (WorkerSettings(drain=True), Scope(), False),
        (WorkerSettings(), Scope(batch_id=new_id()), False),
    ],
)
def test_who_will_leave_or_has_a_batch_of_its_own_does_not_stand_by(
    database_url: str, tmp_path: Path, settings: WorkerSettings, scope: Scope, stands_by: bool
) -> None:
    worker = Worker(database_url, Answering(), Objects.at(tmp_path / "objects"), settings, scope)
    assert worker._handovers.willing is stands_by


def test_who_does_not_hear_does_not_stand_by(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler: what was handed over would wait for the lease's end."""
    hold = Statement("hold_channel", "SELECT 1 WHERE false AND %(channel)s <> '' AND %(pid)s <> 0")
    monkeypatch.setattr(events, "statement", lambda _: hold)

    async def scenario(db: Session) -> None:
        async with asyncio.timeout(PATIENCE):
            scene = Scene(database_url, tmp_path)
            first, second = await a_batch(db, 1), await a_batch(db, 2)
            await scene.ended.acquire()
            await scene.ended.acquire()
            assert (await read(db, first)).completed + (await read(db, second)).completed == 3
            scene.worker.attendant.call()
            await until(lambda: equals(asyncio.sleep(0, scene.worker._listener.channel), None))
            assert await standing(db) == 0
            await scene.stop()

    on(database_url, scenario)

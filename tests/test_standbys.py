"""Workers that stand by: whoever makes a batch claims its first lines for one of them, in the same commit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from batchline.config import WorkerSettings
from batchline.engine.objects import Objects
from batchline.engine.output import answered_line
from batchline.executors.executor import Fence
from batchline.ids import new_id
from batchline.model import DEFAULT_TENANT, Batch, Claim, Completed, Item, RunSettings, Verdict
from batchline.store import batches, duties, events, spans
from batchline.store.batches import NewBatch
from batchline.store.events import Event, Handover, event_of
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope, Standby, Standing, WorkerId
from batchline.store.statements import Statement, statement
from batchline.worker.clock import Clock, steady
from batchline.worker.lease import Lease
from batchline.worker.strays import Strays
from batchline.worker.worker import Worker
from tests.builders import LATER, a_batch, a_file, a_worker, completed, kill, on, read, sql, take

CHANNEL = "batchline_test"
PATIENCE = 60.0


@pytest.fixture
def listener(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The listening connection of a worker: it hears of everything, and holds its lock."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"LISTEN batchline; LISTEN {CHANNEL}".encode())
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (CHANNEL,))
        yield connection


async def stand_by(
    db: Session, worker: WorkerId, *, room: int = 10, scope: Scope | None = None, channel: str = CHANNEL
) -> None:
    standby = Standby(0, room, scope or Scope())
    await spans.poll(db, worker.id, Scope(), Standing(worker, channel, 0.0, (standby,)))


def handed(listener: psycopg.Connection[tuple[object, ...]], batch: Batch) -> Handover | None:
    """What was handed over when the batch was made."""
    handover = None
    for notification in listener.notifies(timeout=PATIENCE):
        event = event_of(notification.payload)
        if event.batch_id == batch.id and event.kind == "handed":
            assert notification.channel == CHANNEL, "lines are not for everybody"
            handover = event.handover()
        if event.batch_id == batch.id and event.kind == "open":
            return handover
    raise AssertionError("a batch was made without a word")


async def held(db: Session) -> list[tuple[object, ...]]:
    return await sql(db, "SELECT worker_id, span_size(outstanding) FROM spans ORDER BY id")


async def cursors(db: Session) -> list[tuple[object, ...]]:
    return await sql(db, "SELECT key, next, drained FROM lanes ORDER BY batch_id, lane_no")


async def standing(db: Session) -> int:
    ((count,),) = await sql(db, "SELECT count(*) FROM standbys")
    assert isinstance(count, int)
    return count


async def with_lines(db: Session, lines: Mapping[str, str]) -> UUID:
    """A file with these bodies by their custom ids."""
    file_id = await a_file(db, {"m": len(lines)})
    query = """
        UPDATE lines SET custom_id = %(id)s, body = %(body)s
        WHERE ordinal = %(nth)s AND file_no = (SELECT no FROM files WHERE id = %(file)s)
    """
    for nth, (custom_id, body) in enumerate(lines.items()):
        await sql(db, query, id=custom_id, body=body, nth=nth, file=file_id)
    return file_id


# What the creator does


def test_whoever_makes_a_batch_claims_its_first_lines_for_who_stands_by(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker, room=4)
        batch = await a_batch(db, 10, upstream="http://there")
        handover = handed(listener, batch)
        assert handover is not None
        assert handover.worker_id == worker.id
        assert await held(db) == [(worker.id, 4)]
        assert await cursors(db) == [("http://there", 4, False)]
        assert await standing(db) == 0, "it was taken at its word"
        fetched = await spans.fetch(db, worker.id, [handover.claim])
        assert handover.items == fetched
        rest = await take(db, worker)
        settled = await spans.settle(db, worker.id, [completed(item) for item in [*handover.items, *rest]])
        assert [row.finished for row in settled] == [True]
        assert sorted(item.line_no for item in [*handover.items, *rest]) == list(range(1, 11))

    on(database_url, scenario)


def test_what_is_handed_over_is_what_a_claim_would_tell(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker)
        first = await a_batch(db, 3, upstream="http://there")
        handover = handed(listener, first)
        assert handover is not None
        await a_batch(db, file_id=first.file_id, upstream="http://there")
        (claim,) = await spans.claim(db, worker, Scope(), 10)

        def told(claim: Claim) -> tuple[object, ...]:
            return claim.attempt, claim.task_id, claim.size, claim.url, claim.model, claim.key, claim.settings

        assert told(handover.claim) == told(claim)
        assert LATER - PATIENCE < claim.seconds_left <= handover.claim.seconds_left <= LATER

    on(database_url, scenario)


def test_a_whole_batch_can_be_handed_over(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker)
        batch = await a_batch(db, 3)
        assert await cursors(db) == [("model", 3, True)]
        handover = handed(listener, batch)
        assert handover is not None
        assert handover.worker_id == worker.id
        assert not await spans.claim(db, a_worker(), Scope(), 10)
        (settled,) = await spans.settle(db, worker.id, [completed(item) for item in handover.items])
        assert settled.finished

    on(database_url, scenario)


def test_each_gets_a_lane_that_it_serves(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker, scope=Scope(keys=("c", "b")))
        batch = await a_batch(db, {"a": 2, "b": 2, "c": 2})
        handover = handed(listener, batch)
        assert handover is not None
        assert handover.worker_id == worker.id
        assert handover.claim.key == "b"
        assert await cursors(db) == [("a", 0, False), ("b", 2, True), ("c", 0, False)]

    on(database_url, scenario)


async def _its_time_is_over(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker)
    await sql(db, "UPDATE standbys SET until = now() - interval '1 ms'")


async def _its_lease_is_over(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker)
    await kill(db, worker)


async def _it_does_not_listen_any_more(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker, channel="elsewhere")


async def _it_serves_other_keys(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker, scope=Scope(keys=("other",)))


async def _it_serves_all_but_this(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker, scope=Scope(besides=("model",)))


async def _it_has_left(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker)
    await spans.leave(db, worker.id)
    assert await standing(db) == 1


async def _it_has_got_work_meanwhile(db: Session, worker: WorkerId) -> None:
    await sql(
        db,
        "INSERT INTO spans (lane_id, batch_id, outstanding, worker_id) "
        "VALUES (0, gen_random_uuid(), '{[0,1)}', %(worker)s)",
        worker=worker.id,
    )
    await stand_by(db, worker)


async def _it_was_taken_at_its_word(db: Session, worker: WorkerId) -> None:
    await stand_by(db, worker)
    first = await a_batch(db, 1)
    assert await held(db) == [(worker.id, 1)]
    await batches.close(db, first.id, "cancel")
    await sql(db, "DELETE FROM spans")


@pytest.mark.parametrize(
    "circumstance",
    [
        _its_time_is_over,
        _its_lease_is_over,
        _it_does_not_listen_any_more,
        _it_serves_other_keys,
        _it_serves_all_but_this,
        _it_has_left,
        _it_has_got_work_meanwhile,
        _it_was_taken_at_its_word,
    ],
)
def test_nothing_is_handed_to_who_cannot_take_it(
    database_url: str,
    listener: psycopg.Connection[tuple[object, ...]],
    circumstance: Callable[[Session, WorkerId], Awaitable[None]],
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await circumstance(db, worker)
        batch = await a_batch(db, 5)
        assert handed(listener, batch) is None
        assert await sql(db, "SELECT id FROM spans WHERE batch_id = %(id)s", id=batch.id) == []
        assert len(await take(db, a_worker())) == 5, "others claim it as ever"

    on(database_url, scenario)


def test_who_stands_by_anew_is_handed_one_batch_at_a_time(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        for _ in range(3):
            await stand_by(db, worker)
        assert await standing(db) == 1
        assert handed(listener, await a_batch(db, 1)) is not None
        assert handed(listener, await a_batch(db, 1)) is None

    on(database_url, scenario)


# What a notification can hold

ODD = 'quotes " and \\ backslashes, \t tabs, \u2028, \x01, emoji 🦜, and a\x7fdelete'


def test_odd_lines_arrive_as_they_are(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker)
        file_id = await with_lines(db, {f"{ODD} {n}": f'{{"n": {n}, "odd": "{ODD}"}}' for n in range(3)})
        batch = await a_batch(db, file_id=file_id)
        handover = handed(listener, batch)
        assert handover is not None
        assert handover.worker_id == worker.id
        assert handover.items == await spans.fetch(db, worker.id, [handover.claim])
        assert handover.items[2].custom_id == f"{ODD} 2".encode()

    on(database_url, scenario)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("x" * 900, 6),
        ("x" * 5_980, 1),
        ("x" * 7_000, 0),
        ("x" * 2_000_000, 0),
        ('"' * 3_800, 1),
        ('"' * 5_000, 0),
    ],
)
def test_as_much_is_handed_over_as_a_notification_can_hold(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]], body: str, count: int
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker, room=64)
        file_id = await with_lines(db, {f"line-{n}": body for n in range(8)})
        batch = await a_batch(db, file_id=file_id)
        handover = handed(listener, batch)
        assert (len(handover.items) if handover else 0) == count
        assert await held(db) == ([(worker.id, count)] if count else [])
        assert len(await take(db, a_worker())) == 8 - count

    on(database_url, scenario)


def test_settings_that_no_notification_can_hold_keep_no_batch_from_being_made(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await stand_by(db, worker)
        batch = await a_batch(db, 1, upstream="http://there/" + "x" * 9_000)
        assert handed(listener, batch) is None
        assert await held(db) == []

    on(database_url, scenario)


# The lock of the listening connection


def test_a_connection_that_is_not_what_it_seems_holds_no_lock(database_url: str) -> None:
    """Behind a pooler the process that runs the statement is another than the client was told."""

    async def scenario(db: Session) -> None:
        ((pid,),) = await sql(db, "SELECT pg_backend_pid()")
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %(pid)s"
        for told, rows in ((-1, 0), (pid, 1)):
            held_now = await db.rows(statement("hold_channel"), {"channel": CHANNEL, "pid": told})
            assert len(held_now) == rows
            assert await sql(db, locks, pid=pid) == [(rows,)]

    on(database_url, scenario)


# Two at once


async def _create(connection: psycopg.AsyncConnection[tuple[object, ...]], file_id: UUID) -> None:
    new = NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", LATER, RunSettings())
    await connection.execute(statement("create_batch").text, batches.created(new))


def test_who_is_just_being_handed_something_is_passed_over_and_waits_for_nobody(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The first creator holds its transaction open. Another one, the worker that stands by anew, and its
    heartbeat go on meanwhile; a statement that waited would wait for ever here."""

    async def scenario(db: Session) -> None:
        worker, file_id = a_worker(), await a_file(db, {"m": 5})
        await stand_by(db, worker, room=2)
        async with await psycopg.AsyncConnection.connect(database_url) as first, asyncio.timeout(PATIENCE):
            await _create(first, file_id)
            await a_batch(db, file_id=file_id)
            assert await held(db) == [], "the one that stands by is taken, and the batch is there"
            await spans.renew(db, worker)
            await stand_by(db, worker, room=3)
            await duties.forget_workers(db)
            await a_batch(db, file_id=file_id)
            assert await held(db) == [(worker.id, 3)], "its new word holds at once"
            await first.commit()
        assert sorted(await held(db), key=str) == [(worker.id, 2), (worker.id, 3)]
        assert await standing(db) == 0

    on(database_url, scenario)


def test_a_creation_that_fails_leaves_the_stand_by_as_it_was(
    database_url: str, listener: psycopg.Connection[tuple[object, ...]]
) -> None:
    async def scenario(db: Session) -> None:
        worker, file_id = a_worker(), await a_file(db, {"m": 5})
        await stand_by(db, worker)
        async with await psycopg.AsyncConnection.connect(database_url) as first:
            await _create(first, file_id)
            await first.rollback()
        assert await held(db) == []
        batch = await a_batch(db, file_id=file_id)
        assert handed(listener, batch) is not None

    on(database_url, scenario)


# What is freed, and what is taken up


class Lost:
    """A worker that has lost track of what it has claimed, and what it would do about it."""

    def __init__(self, db: Session) -> None:
        self.lease = Lease(WorkerSettings(), lambda: 0.0, lambda: 0)
        self.known: set[int] = set()
        self.told = 0
        self.strays = Strays(db, self.lease, lambda: self.known, asyncio.Lock(), self.tell)
        self.strays.lost_track()

    def tell(self) -> None:
        self.told += 1

    async def claim(self, db: Session, limit: int = 1) -> int:
        (claim,) = await spans.claim(db, self.lease.worker, Scope(), limit)
        return claim.span_id


def test_what_was_freed_before_the_word_of_it_came_is_not_taken_up(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await a_batch(db, 3)
        stray, known = await lost.claim(db), await lost.claim(db, 2)
        lost.known = {known}
        assert not lost.strays.may_take(99), "it may be freed any moment"
        await lost.strays.release()
        assert not lost.strays.busy
        assert await held(db) == [(None, 1), (lost.lease.worker.id, 2)]
        assert lost.told == 1, "somebody should look for what was freed"
        assert not lost.strays.may_take(stray)
        assert lost.strays.may_take(known)

    on(database_url, scenario)


def test_what_is_turned_away_while_strays_are_freed_is_freed_after_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_strays, rounds = spans.strays, list[int]()

    async def scenario(db: Session) -> None:
        lost = Lost(db)

        async def strays(session: Session, worker_id: UUID, known: set[int]) -> set[int]:
            found = await true_strays(session, worker_id, known)
            rounds.append(len(found))
            if len(rounds) == 1:
                assert not lost.strays.may_take(await lost.claim(db))
            return found

        monkeypatch.setattr(spans, "strays", strays)
        await a_batch(db, 1)
        running = asyncio.create_task(lost.strays.run())
        async with asyncio.timeout(PATIENCE):
            await until(lambda: _is(asyncio.sleep(0, lost.strays.busy), False))
        running.cancel()
        assert rounds == [0, 1]
        assert await held(db) == [(None, 1)]

    on(database_url, scenario)


def test_what_was_freed_without_an_answer_is_not_taken_up_either(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_release, failures = spans.release, iter([True])

    async def release(session: Session, worker_id: UUID, some: set[int] | None = None) -> list[UUID]:
        concerned = await true_release(session, worker_id, some)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return concerned

    monkeypatch.setattr(spans, "release", release)

    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await a_batch(db, 1)
        stray = await lost.claim(db)
        with pytest.raises(StoreUnavailable):
            await lost.strays.release()
        await lost.strays.release()
        assert not lost.strays.busy
        assert len(await take(db, a_worker())) == 1
        assert not lost.strays.may_take(stray), "another one has it"

    on(database_url, scenario)


def test_strays_of_a_batch_that_was_cancelled_let_it_end(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost, batch = Lost(db), await a_batch(db, 1)
        await lost.claim(db)
        await batches.close(db, batch.id, "cancel")
        assert (await read(db, batch)).finalizing_at is None
        await lost.strays.release()
        assert (await read(db, batch)).finalizing_at is not None

    on(database_url, scenario)


def test_more_in_the_database_than_is_known_here_twice_in_a_row_is_a_loss(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await lost.strays.release()
        lost.known = {1, 2}
        for held_there, known_before, busy in [
            (3, 2, False),
            (2, 2, False),
            (3, 3, False),
            (3, 2, False),
            (3, 2, True),
        ]:
            lost.strays.compare(held_there, known_before)
            assert lost.strays.busy is busy

    on(database_url, scenario)


def test_a_lease_covers_what_was_said_since_it_was_last_unbroken() -> None:
    now = [0.0]
    lease = Lease(WorkerSettings(lease=10.0), lambda: now[0], lambda: 0)
    assert not lease.take_up(0.0), "it never stood by"
    lease.stood_by(0.0)
    lease.stood_by(7.0)
    now[0] = 14.0
    assert lease.take_up(0.0)
    assert lease.ends == 15.0
    lease.rest()
    now[0] = 15.0
    assert not lease.take_up(7.0), "it would be over"
    lease.stood_by(16.0)
    now[0] = 17.0
    assert not lease.take_up(7.0), "it was over in between"
    assert lease.take_up(16.0)


# A worker that stands by


async def until(fact: Callable[[], Awaitable[object]]) -> None:
    while not await fact():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _is(found: Awaitable[object], expected: object) -> bool:
    return await found == expected


class Answering:
    """Answers at once, or when it is let; remembers which lines were sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[UUID, int]] = []
        self.begun = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def run(self, item: Item) -> Verdict:
        self.sent.append((item.claim.batch_id, item.line_no))
        self.begun.release()
        await self.go_on.wait()
        return Completed(item, 200, answered_line(item, 200, "r", b"{}"))

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return


class Scene:
    """A worker in this process that has heard of a first batch, and stands by."""

    def __init__(self, url: str, folder: Path, clock: Clock = steady) -> None:
        self.url = url
        self.executor = Answering()
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
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            await until(lambda: _is(asyncio.sleep(0, lease.ends > now + 205.0 + 239.0), True))
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
            await until(lambda: _is(asyncio.sleep(0, len(late)), 2))
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
            await until(lambda: _is(sql(db, query, batch=unheard.id), [(True,)]))
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
    assert worker._stands_by is stands_by


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
            await until(lambda: _is(asyncio.sleep(0, scene.worker._listener.channel), None))
            assert await standing(db) == 0
            await scene.stop()

    on(database_url, scenario)

"""Workers that stand by: whoever makes a batch claims its first lines for one of them, in the same commit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from uuid import UUID

import psycopg
import pytest

from batchline.ids import new_id
from batchline.model import DEFAULT_TENANT, Batch, Claim, RunSettings
from batchline.store import batches, duties, spans
from batchline.store.batches import NewBatch
from batchline.store.events import Handover, event_of
from batchline.store.session import Session
from batchline.store.spans import Scope, Standby, Standing, WorkerId
from batchline.store.statements import statement
from tests.builders import LATER, a_batch, a_file, a_worker, completed, held, kill, on, sql, standing, take

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


async def cursors(db: Session) -> list[tuple[object, ...]]:
    return await sql(db, "SELECT key, next, drained FROM lanes ORDER BY batch_id, lane_no")


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

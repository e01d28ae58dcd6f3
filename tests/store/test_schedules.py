"""The rows of schedules: a due time is leased by one worker, and advanced by one transaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from batchline.model import DEFAULT_TENANT
from batchline.model.ids import new_id
from batchline.store import schedules, spans
from batchline.store.guest import long_transaction
from batchline.store.schedules import NewSchedule, ScheduleScope, StoredSchedule, TakenSchedule
from batchline.store.session import InTransaction, Session
from batchline.store.spans import Scope
from tests.support.builders import a_batch, a_worker, sql, until

TENANT = DEFAULT_TENANT
NIGHTLY = ScheduleScope(TENANT, {"nightly": "0 3 * * * UTC"})
CHANGED = ScheduleScope(TENANT, {"nightly": "0 4 * * * UTC"})
HOUR = timedelta(hours=1)
LEASE = 60.0
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def now(db: Session) -> datetime:
    return (await schedules.known(db, NIGHTLY)).now


async def register(db: Session, scope: ScheduleScope = NIGHTLY, *, due_in: timedelta = -HOUR) -> datetime:
    """Register it, due an hour ago; when."""
    due = (await now(db) + due_in).replace(microsecond=0)
    new = [NewSchedule(name, definition, due) for name, definition in scope.definitions.items()]
    await schedules.register(db, scope.tenant, new)
    return due


async def take(db: Session, scope: ScheduleScope = NIGHTLY) -> TakenSchedule:
    (taken,) = await schedules.take_due(db, scope, lease=LEASE)
    return taken


async def advance(db: Session, taken: TakenSchedule) -> float | None:
    return await schedules.advance(db, taken, at=taken.due_at, following=taken.now + HOUR, batch_id=new_id())


async def row(db: Session) -> StoredSchedule:
    (found,) = await schedules.listed(db, TENANT)
    return found


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Session]:
    """The session of another worker."""
    async with Session(database_url, "other") as session:
        yield session


# Registering


async def test_a_new_schedule_is_due_at_its_first_time(db: Session) -> None:
    due = await register(db, due_in=HOUR)
    stored = await row(db)
    assert (stored.due_at, stored.available_at, stored.attempts) == (due, due, 0)
    assert await schedules.take_due(db, NIGHTLY, lease=LEASE) == []


async def test_a_schedule_that_is_known_keeps_its_time_when_a_worker_starts(db: Session) -> None:
    due = await register(db)
    await register(db, due_in=HOUR)
    assert (await row(db)).due_at == due
    assert (await schedules.known(db, NIGHTLY)).definitions == NIGHTLY.definitions


async def test_a_schedule_whose_definition_changed_gets_a_new_time(db: Session) -> None:
    await register(db)
    taken = await take(db)
    due = await register(db, CHANGED, due_in=HOUR)
    stored = await row(db)
    assert (stored.definition, stored.due_at, stored.attempts) == ("0 4 * * * UTC", due, 0)
    assert await advance(db, taken) is None, "the time is none of the new definition"


async def test_a_worker_with_another_definition_leaves_the_schedule_alone(db: Session) -> None:
    await register(db)
    assert await schedules.take_due(db, CHANGED, lease=LEASE) == []
    assert not (await spans.poll(db, a_worker().id, Scope(), schedules=CHANGED)).schedules_due


async def test_a_schedule_belongs_to_its_tenant(db: Session) -> None:
    await register(db)
    assert await schedules.take_due(db, ScheduleScope("other", NIGHTLY.definitions), lease=LEASE) == []


# Taking


async def test_a_schedule_that_is_due_is_taken_by_one_worker(db: Session, other: Session) -> None:
    due = await register(db)
    first, second = await asyncio.gather(
        schedules.take_due(db, NIGHTLY, lease=LEASE), schedules.take_due(other, NIGHTLY, lease=LEASE)
    )
    (taken,) = first + second
    assert (taken.due_at, taken.attempt) == (due, 1)


async def test_all_that_is_due_is_taken_at_once(db: Session) -> None:
    scope = ScheduleScope(TENANT, {"nightly": "0 3 * * * UTC", "often": "* * * * * UTC"})
    await register(db, scope)
    taken = await schedules.take_due(db, scope, lease=LEASE)
    assert {each.name for each in taken} == {"nightly", "often"}


async def test_after_its_lease_a_schedule_is_taken_again_and_the_first_worker_can_do_nothing(
    db: Session, other: Session
) -> None:
    await register(db)
    first = await take(db)
    await sql(db, "UPDATE batchline.schedules SET available_at = now()")
    second = await take(other)
    assert (second.due_at, second.attempt) == (first.due_at, 2)
    assert await advance(db, first) is None
    assert not await schedules.put_off(db, first, delay=0, error="late")
    assert await advance(other, second) == pytest.approx(3600, abs=60)


async def test_a_schedule_that_failed_waits_for_its_delay_and_keeps_its_time(db: Session) -> None:
    due = await register(db)
    taken = await take(db)
    assert await schedules.put_off(db, taken, delay=100, error="ValueError: no")
    stored = await row(db)
    assert (stored.due_at, stored.last_error) == (due, "ValueError: no")
    assert stored.available_at - await now(db) == pytest.approx(timedelta(seconds=100), abs=HOUR / 60)
    assert await schedules.take_due(db, NIGHTLY, lease=LEASE) == []


# Advancing


async def test_an_advanced_schedule_waits_for_its_next_time(db: Session) -> None:
    due = await register(db)
    taken = await take(db)
    batch = new_id()
    following = taken.now + HOUR
    assert await schedules.advance(db, taken, at=due, following=following, batch_id=batch)
    stored = await row(db)
    assert (stored.due_at, stored.available_at, stored.attempts) == (following, following, 0)
    assert (stored.last_at, stored.last_batch_id) == (due, batch)
    assert await schedules.take_due(db, NIGHTLY, lease=LEASE) == []


@asynccontextmanager
async def advancing(db: Session, taken: TakenSchedule) -> AsyncIterator[InTransaction]:
    """A worker that has advanced the schedule and created its batch, and has not committed."""
    async with long_transaction(db) as inside:
        assert await advance(inside, taken) is not None
        await a_batch(inside, 3)
        yield inside


async def count_batches(db: Session) -> int:
    ((count,),) = await sql(db, "SELECT count(*) FROM batchline.batches")
    return int(count)


async def test_while_a_worker_stores_items_others_neither_take_the_schedule_nor_wait(
    db: Session, other: Session
) -> None:
    await register(db)
    taken = await take(db)
    # Its lease has ended meanwhile.
    await sql(db, "UPDATE batchline.schedules SET available_at = now()")
    async with advancing(db, taken):
        assert await asyncio.wait_for(schedules.take_due(other, NIGHTLY, lease=LEASE), 60) == []
        assert (await schedules.known(other, NIGHTLY)).definitions == NIGHTLY.definitions
    assert await schedules.take_due(other, NIGHTLY, lease=LEASE) == []


class Killed(Exception):
    """Stands for kill -9: the server rolls the transaction back."""


async def test_a_worker_that_dies_before_its_commit_has_done_nothing(db: Session, other: Session) -> None:
    due = await register(db)
    taken = await take(db)
    with pytest.raises(Killed):
        async with advancing(db, taken):
            raise Killed
    assert await count_batches(db) == 0
    assert (await row(db)).due_at == due
    await sql(db, "UPDATE batchline.schedules SET available_at = now()")
    again = await take(other)
    async with advancing(other, again):
        pass
    assert await count_batches(db) == 1


@pytest.mark.parametrize("killed", [False, True])
async def test_of_two_workers_at_the_same_due_time_one_creates_the_batch(
    db: Session, other: Session, database_url: str, killed: bool
) -> None:
    """Both have passed all checks before the transaction. The second waits for the first, and then finds
    another due time; if the first dies, it finds the same."""
    await register(db)
    taken = await take(db)

    async def second() -> bool:
        async with long_transaction(other) as inside:
            if await advance(inside, taken) is None:
                return False
            await a_batch(inside, 3)
            return True

    try:
        async with advancing(db, taken), Session(database_url, "watcher") as watcher:
            waiting = asyncio.create_task(second())

            async def is_waiting() -> bool:
                return bool(await sql(watcher, WAITING))

            await until(is_waiting)
            if killed:
                raise Killed
    except Killed:
        pass
    assert await waiting is killed
    assert await count_batches(db) == 1


# What a poll returns


async def test_a_poll_returns_whether_a_schedule_is_due_and_when_the_next_is(db: Session) -> None:
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    worker = a_worker().id
    await register(db, due_in=HOUR / 2)
    result = await spans.poll(db, worker, Scope(), schedules=NIGHTLY)
    assert not result.schedules_due
    assert result.next_due == pytest.approx(1800, abs=60)
    assert (await spans.poll(db, worker, Scope())).next_due == pytest.approx(86_400, abs=60)
    await sql(db, "UPDATE batchline.schedules SET available_at = now()")
    assert (await spans.poll(db, worker, Scope(), schedules=NIGHTLY)).schedules_due


# What operators see


async def test_a_schedule_is_waiting_late_running_or_retrying(db: Session) -> None:
    await register(db, due_in=HOUR)
    assert (await row(db)).state == "waiting"
    await register(db, CHANGED)
    assert (await row(db)).state == "late"
    taken = await take(db, CHANGED)
    assert (await row(db)).state == "running"
    await schedules.put_off(db, taken, delay=60, error="ValueError: no rows")
    assert (await row(db)).state == "retrying"


async def test_the_lag_is_the_time_since_it_was_due_and_the_latest_come_first(db: Session) -> None:
    await register(db, ScheduleScope(TENANT, {"early": "0 3 * * * UTC"}), due_in=HOUR)
    due = await register(db)
    first, second = await schedules.lags(db)
    assert first.name == "nightly"
    assert 3600 <= first.seconds <= (await now(db) - due).total_seconds()
    assert (second.name, second.seconds) == ("early", 0)


async def test_the_operation_is_that_of_the_last_batch(db: Session) -> None:
    await register(db)
    assert (await row(db)).operation is None
    batch = await a_batch(db, 1)
    taken = await take(db)
    await schedules.advance(db, taken, at=taken.due_at, following=taken.now + HOUR, batch_id=batch.id)
    assert (await row(db)).operation == batch.endpoint


async def test_a_forgotten_schedule_is_gone_until_it_is_registered_again(db: Session) -> None:
    await register(db)
    assert not await schedules.forget(db, "other", "nightly")
    assert await schedules.forget(db, TENANT, "nightly")
    assert not await schedules.forget(db, TENANT, "nightly")
    assert await schedules.lags(db) == []
    await register(db)
    assert await row(db)

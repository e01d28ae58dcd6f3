"""The schedule runner alone: one batch per due time, back-off, time limits, and few queries."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import structlog

from batchline.config.settings import WorkerSettings
from batchline.model import DEFAULT_TENANT, PollResult, RunSettings
from batchline.operations.cron import CronTimes
from batchline.operations.operation import make_operation
from batchline.operations.schedules import AnySchedule, ScheduledItems, make_schedule
from batchline.store import batches, schedules, spans
from batchline.store.batches import NewBatch
from batchline.store.schedules import KnownSchedules, StoredSchedule, TakenSchedule
from batchline.store.session import InTransaction, Session
from batchline.store.spans import Scope
from batchline.worker import schedule_runner
from batchline.worker.lease import Lease
from batchline.worker.poller import Poller
from batchline.worker.schedule_runner import AppSchedules, ItemsUnreadable, ScheduledBatch, ScheduleRunner
from tests.support.builders import a_file, sql, until
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import eventually

PATIENCE = 120.0
DUE = "UPDATE batchline.schedules SET available_at = now()"
YEARLY = "0 0 1 1 *"


async def report(day: str) -> None: ...


OPERATION = make_operation(report)


class Function:
    """The function of a schedule, which notes its calls."""

    def __init__(self, act: Callable[[datetime], Any] = lambda at: []) -> None:
        self.times: list[datetime] = []
        self._act = act

    def schedule(self, name: str = "nightly", expression: str = YEARLY, **more: Any) -> AnySchedule:
        async def function(at: datetime) -> Any:
            self.times.append(at)
            result = self._act(at)
            return await result if asyncio.iscoroutine(result) else result

        return make_schedule(function, OPERATION, CronTimes(expression), name=name, **more)


async def create(session: InTransaction, batch: ScheduledBatch, items: ScheduledItems[Any]) -> None:
    """As an app does it, with lines that do not matter."""
    file_id = await a_file(session, {"report": 2})
    new = NewBatch(
        batch.id,
        DEFAULT_TENANT,
        file_id,
        "24h",
        86_400.0,
        settings=RunSettings(),
        resume_key=batch.resume_key,
    )
    await batches.create(session, new)


@asynccontextmanager
async def running(
    url: str, *each: AnySchedule, submit: schedule_runner.SubmitScheduled = create
) -> AsyncIterator[ScheduleRunner]:
    async with Session(url, "schedules") as session:
        runner = ScheduleRunner(url, session, AppSchedules(DEFAULT_TENANT, each, submit))
        task = asyncio.create_task(runner.run())
        try:
            async with asyncio.timeout(PATIENCE):
                # It registers them.
                await asyncio.sleep(0)
                await runner.idle.wait()
                yield runner
        finally:
            task.cancel()
            await asyncio.wait([task])


async def run_due(db: Session, runner: ScheduleRunner) -> None:
    """Make all schedules due, and run them."""
    await sql(db, DUE)
    runner.wake()
    await runner.idle.wait()


async def row(db: Session, name: str = "nightly") -> StoredSchedule:
    (found,) = [each for each in await schedules.listed(db, DEFAULT_TENANT) if each.name == name]
    return found


async def created(db: Session) -> list[tuple[UUID, str]]:
    rows = await sql(db, "SELECT id, resume_key FROM batchline.batches ORDER BY resume_key")
    return [(id_, key) for id_, key in rows]


async def missed(db: Session, time: str) -> datetime:
    """Nobody has run the schedule since."""
    due = datetime.fromisoformat(time).replace(tzinfo=UTC)
    await sql(db, "UPDATE batchline.schedules SET due_at = %(due)s, available_at = %(due)s", due=due)
    return due


async def test_a_due_time_becomes_a_batch_and_the_next_time_follows(db: Session, database_url: str) -> None:
    nightly = Function()
    async with running(database_url, nightly.schedule()) as runner:
        due = await missed(db, "2020-01-01")
        this_year = due.replace(year=datetime.now(UTC).year)
        await run_due(db, runner)
    assert nightly.times == [this_year]
    stored = await row(db)
    assert stored.due_at == this_year.replace(year=this_year.year + 1)
    assert stored.last_at == this_year
    assert await created(db) == [(stored.last_batch_id, f"schedule nightly {this_year.isoformat()}")]


async def test_with_catch_up_each_missed_time_becomes_a_batch_the_oldest_first(
    db: Session, database_url: str
) -> None:
    nightly = Function()
    async with running(database_url, nightly.schedule(catch_up=True)) as runner:
        await missed(db, "2020-01-01")
        runner.wake()
        await runner.idle.wait()
    this_year = (await row(db)).due_at.year - 1
    assert [at.year for at in nightly.times] == list(range(2020, this_year + 1))
    assert len(await created(db)) == len(nightly.times)


async def test_a_time_that_needs_no_batch_is_not_tried_again(db: Session, database_url: str) -> None:
    nightly = Function(lambda at: None)
    async with running(database_url, nightly.schedule()) as runner:
        await missed(db, "2020-01-01")
        for _ in range(2):
            runner.wake()
            await runner.idle.wait()
    assert len(nightly.times) == 1
    assert await created(db) == []
    assert (await row(db)).last_batch_id is None


async def test_of_two_runners_that_are_woken_together_one_runs_the_function(
    db: Session, database_url: str
) -> None:
    nightly = Function()
    schedule = nightly.schedule()
    async with running(database_url, schedule) as one, running(database_url, schedule) as other:
        await missed(db, "2020-01-01")
        one.wake()
        other.wake()
        await one.idle.wait()
        await other.idle.wait()
    assert len(nightly.times) == len(await created(db)) == 1


async def test_a_runner_that_lost_its_lease_creates_no_second_batch(db: Session, database_url: str) -> None:
    gate = asyncio.Event()

    async def gated(at: datetime) -> list[str]:
        await gate.wait()
        return []

    slow, quick = Function(gated), Function()
    async with (
        running(database_url, slow.schedule()) as one,
        running(database_url, quick.schedule()) as other,
    ):
        await missed(db, "2020-01-01")
        one.wake()
        await eventually("the slow function", lambda: slow.times)
        # As if the first one had slept for longer than its lease.
        await run_due(db, other)
        assert len(await created(db)) == 1
        gate.set()
        await one.idle.wait()
    assert len(quick.times) == len(await created(db)) == 1


async def test_a_time_that_has_a_batch_gets_no_second_one_after_the_clock_was_put_back(
    db: Session, database_url: str
) -> None:
    nightly = Function()
    async with running(database_url, nightly.schedule()) as runner:
        due = (await missed(db, "2020-01-01")).replace(year=datetime.now(UTC).year)
        await run_due(db, runner)
        first = await row(db)
        await sql(db, "UPDATE batchline.schedules SET due_at = %(due)s", due=due)
        await run_due(db, runner)
    assert len(nightly.times) == 2
    assert len(await created(db)) == 1
    assert (await row(db)).due_at == first.due_at


async def test_a_function_that_fails_is_tried_again_after_a_growing_delay_and_its_error_is_stored(
    db: Session, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    put_off = schedules.put_off

    async def noted(session: Session, taken: TakenSchedule, *, delay: float, error: str) -> bool:
        delays.append(delay)
        return await put_off(session, taken, delay=delay, error=error)

    monkeypatch.setattr(schedules, "put_off", noted)
    # As the delays are not waited for, nothing may wake the runner but the test.
    monkeypatch.setattr(schedule_runner, "_SOON", 0.0)

    def fail(at: datetime) -> None:
        raise ValueError("the token is sk-proj-1234567890abcdefghij")

    nightly = Function(fail)
    async with running(database_url, nightly.schedule()) as runner:
        due = await missed(db, "2020-01-01")
        with structlog.testing.capture_logs() as log:
            for _ in range(5):
                await run_due(db, runner)
    stored = await row(db)
    assert (stored.due_at, stored.attempts) == (due, 5)
    assert stored.last_error is not None
    assert stored.last_error.startswith("ValueError: the token is")
    assert "1234567890" not in stored.last_error
    assert [each["event"] for each in log].count("schedule failed") == 5
    for nth, delay in enumerate(delays):
        assert 5 * 2**nth / 2 <= delay <= 5 * 2**nth
    assert await created(db) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("half \ud800"), "ValueError: half ?"),
    ],
)
async def test_whatever_a_function_raises_is_stored_and_ends_no_worker(
    db: Session, database_url: str, error: BaseException, reason: str
) -> None:
    def fail(at: datetime) -> None:
        raise error

    async with running(database_url, Function(fail).schedule()) as runner:
        await missed(db, "2020-01-01")
        await run_due(db, runner)
        stored = await row(db)
    assert stored.last_error == reason


async def test_items_that_cannot_be_read_undo_the_batch_and_are_tried_again(
    db: Session, database_url: str
) -> None:
    tries = 0

    async def half(session: InTransaction, batch: ScheduledBatch, items: ScheduledItems[Any]) -> None:
        nonlocal tries
        tries += 1
        await create(session, batch, items)
        if tries == 1:
            raise ItemsUnreadable from KeyError("day")

    nightly = Function()
    async with running(database_url, nightly.schedule(), submit=half) as runner:
        due = await missed(db, "2020-01-01")
        runner.wake()
        await runner.idle.wait()
        failed = await row(db)
        assert (failed.due_at, failed.last_error) == (due, "KeyError: 'day'")
        assert await created(db) == []
        await run_due(db, runner)
    assert len(await created(db)) == 1


async def test_a_function_that_hangs_is_ended_and_delays_no_other_schedule(
    db: Session, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, quick = Function(lambda at: asyncio.Event().wait()), Function()
    async with running(database_url, hangs.schedule("hangs"), quick.schedule("quick")) as runner:
        await missed(db, "2020-01-01")
        monkeypatch.setattr(schedule_runner, "FUNCTION_LIMIT", 3.0)
        runner.wake()

        async def is_stored() -> bool:
            return (await row(db, "quick")).last_at is not None

        await until(is_stored)
        assert not runner.idle.is_set(), "the other one still runs"
        await runner.idle.wait()
    assert (await row(db, "hangs")).last_error == "TimeoutError: its function did not end within 3 s"


async def test_a_schedule_that_is_due_soon_needs_no_poll(db: Session, database_url: str) -> None:
    every_second = Function()
    async with running(database_url, every_second.schedule("often", "* * * * * *")):
        await eventually("three times", lambda: len(every_second.times) >= 3)
    assert {
        later - earlier for earlier, later in zip(every_second.times, every_second.times[1:], strict=False)
    } <= {timedelta(seconds=n) for n in range(1, 60)}
    assert len(set(every_second.times)) == len(every_second.times)


async def test_a_schedule_that_left_the_app_stays_and_does_nothing(db: Session, database_url: str) -> None:
    gone, other = Function(), Function()
    async with running(database_url, gone.schedule("gone"), other.schedule("other")):
        pass
    async with running(database_url, other.schedule("other")) as runner:
        await missed(db, "2020-01-01")
        runner.wake()
        await runner.idle.wait()
    assert (len(gone.times), len(other.times)) == (0, 1)
    assert (await row(db, "gone")).due_at.year == 2020


async def test_a_changed_expression_gets_a_new_time_and_workers_with_the_old_one_leave_it_alone(
    db: Session, database_url: str
) -> None:
    old, new = Function(), Function()
    async with running(database_url, old.schedule()) as before:
        await missed(db, "2020-01-01")
        async with running(database_url, new.schedule(expression="0 0 2 1 *")):
            await run_due(db, before)
            assert (await row(db)).due_at.day == 2
    assert (old.times, new.times) == ([], [])


async def test_a_runner_without_schedules_opens_no_connection(database_url: str) -> None:
    session = Session(database_url, "schedules")
    runner = ScheduleRunner(database_url, session, AppSchedules())
    task = asyncio.create_task(runner.run())
    await asyncio.sleep(0)
    runner.wake()
    assert runner.idle.is_set()
    task.cancel()
    await asyncio.wait([task])
    assert session._connection is None


# The load of an idle worker


def test_an_idle_worker_with_a_schedule_sends_at_most_four_queries_per_minute_and_is_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It polls, and takes what is due. A row in memory stands for the database, with the time of the loop."""
    queries: list[float] = []
    started = datetime(2026, 1, 1, tzinfo=UTC)
    hourly = Function(lambda at: None).schedule("hourly", "30 * * * *")
    due: datetime = started + timedelta(days=1)

    def loop_time() -> float:
        return asyncio.get_running_loop().time()

    def database_time() -> datetime:
        queries.append(loop_time())
        return started + timedelta(seconds=loop_time())

    async def known(*_: object) -> KnownSchedules:
        return KnownSchedules(database_time(), {})

    async def register(session: Session, tenant: str, new: list[schedules.NewSchedule]) -> None:
        nonlocal due
        database_time()
        due = new[0].due_at

    async def poll(*_: object) -> PollResult:
        left = (due - database_time()).total_seconds()
        return PollResult(False, False, False, left, None, False, schedules_due=left <= 0)

    async def take_due(*_: object, lease: float) -> list[TakenSchedule]:
        now = database_time()
        found = TakenSchedule(DEFAULT_TENANT, "hourly", hourly.times.definition, due, 1, now)
        return [found] if due <= now else []

    late: list[float] = []

    async def store(
        self: ScheduleRunner, session: Session, taken: TakenSchedule, time: Any, *_: object
    ) -> float:
        nonlocal due
        late.append((database_time() - due).total_seconds())
        due = time.following
        return (due - taken.now).total_seconds()

    for name, fake in (("known", known), ("register", register), ("take_due", take_due)):
        monkeypatch.setattr(schedules, name, fake)
    monkeypatch.setattr(spans, "poll", poll)
    monkeypatch.setattr(ScheduleRunner, "_store", store)

    async def idle() -> None:
        session, settings = Session("postgresql://nowhere", "test"), WorkerSettings()
        app = AppSchedules(DEFAULT_TENANT, (hourly,))
        runner = ScheduleRunner("postgresql://nowhere", session, app)

        def found(result: PollResult) -> None:
            if result.schedules_due:
                runner.wake()

        lease = Lease(settings, lambda: 0.0, lambda: 0)
        poller = Poller(session, lease, Scope(), settings, found, schedules=app.scope)
        tasks = [asyncio.create_task(runner.run()), asyncio.create_task(poller.run())]
        await asyncio.wait(tasks, timeout=10 * 3600)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(idle())
    assert len(late) == 10
    assert max(late) < 1
    # It slows down in the first half minute.
    assert len([at for at in queries if at > 30]) <= 4 * (600 - 0.5)


async def test_a_worker_with_an_old_definition_does_not_put_it_back(db: Session, database_url: str) -> None:
    long_ago = float("-inf")
    async with running(database_url, Function().schedule()) as old:
        async with running(database_url, Function().schedule(expression="0 0 2 2 *")):
            newer = (await row(db)).definition
        old._registered_at = long_ago
        await run_due(db, old)
        assert (await row(db)).definition == newer
        # One that was removed comes back.
        await sql(db, "DELETE FROM batchline.schedules")
        old._registered_at = long_ago
        await run_due(db, old)
        assert (await row(db)).definition != newer

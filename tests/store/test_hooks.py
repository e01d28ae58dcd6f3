"""Deliveries to hooks: one per event and hook, run by one process at a time, at least once."""

import asyncio
from pathlib import Path
from uuid import UUID

from batchline.batches import maintenance as tasks
from batchline.config.settings import EVENTS_KEPT
from batchline.files.objects import Objects
from batchline.model.ids import new_id
from batchline.store import hooks, spans
from batchline.store.hooks import HookOutcome, TakenHook
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import sql
from tests.support.hooks import fan_out
from tests.support.webhooks import an_ended_batch

LEASE = 60.0
DONE = HookOutcome(True, output="sent\n")
BROKEN = HookOutcome(False, "it ended with exit code 1", "no route\n")


async def take(db: Session, *names: str, batch_id: UUID | None = None) -> TakenHook | None:
    return await hooks.take(db, names, lease=LEASE, batch_id=batch_id)


async def must_take(db: Session, *names: str) -> TakenHook:
    taken = await take(db, *names)
    assert taken is not None
    return taken


async def settle(
    db: Session, taken: TakenHook, outcome: HookOutcome, *, delay: float = 0.0, max_attempts: int = 30
) -> bool | None:
    return await hooks.settle(db, taken, outcome, delay=delay, max_attempts=max_attempts)


async def states(db: Session) -> dict[str, tuple[str, int]]:
    return {each.hook: (each.state, each.attempts) for each in await hooks.deliveries(db, limit=100)}


async def pass_seconds(db: Session, seconds: float) -> None:
    """As if everything had happened so many seconds earlier."""
    await sql(
        db,
        """
        WITH passed AS (SELECT make_interval(secs => %(seconds)s) AS time),
        hook AS (UPDATE batchline.hooks SET seen_at = seen_at - passed.time FROM passed)
        UPDATE batchline.hook_deliveries
        SET available_at = available_at - passed.time,
            running_until = running_until - passed.time,
            created_at = created_at - passed.time
        FROM passed
        """,
        seconds=seconds,
    )


async def test_an_event_becomes_one_delivery_per_registered_hook_however_often_it_is_fanned_out(
    db: Session,
) -> None:
    await hooks.register(db, ["b", "a"])
    await hooks.register(db, ["a", "b"])
    batch = await an_ended_batch(db)
    ((event,),) = await sql(db, "SELECT id FROM batchline.outbox")
    assert [await hooks.fan_out(db, event), await hooks.fan_out(db, event)] == [2, 0]
    found = await hooks.deliveries(db, limit=10)
    assert [(each.hook, each.batch_id, each.type) for each in found] == [
        ("b", batch.id, "batch.completed"),
        ("a", batch.id, "batch.completed"),
    ]


async def test_without_hooks_an_event_makes_no_delivery(db: Session) -> None:
    await an_ended_batch(db)
    assert await fan_out(db) == 0


async def test_a_worker_takes_deliveries_to_its_own_hooks_only(db: Session) -> None:
    await hooks.register(db, ["ours", "theirs"])
    await an_ended_batch(db)
    await fan_out(db)
    assert await take(db) is None
    assert (await must_take(db, "ours", "another")).hook == "ours"
    assert await take(db, "ours", "another") is None
    assert (await must_take(db, "theirs")).hook == "theirs"


async def test_of_two_workers_with_the_same_hook_one_takes_each_delivery(
    database_url: str, db: Session
) -> None:
    await hooks.register(db, ["hook"])
    for _ in range(20):
        await an_ended_batch(db)
    await fan_out(db)

    async def take_all(session: Session) -> list[UUID]:
        found = []
        while (taken := await take(session, "hook")) is not None:
            found.append(taken.event_id)
        return found

    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        first, second = await asyncio.gather(take_all(one), take_all(two))
    assert len(first) + len(second) == len({*first, *second}) == 20


async def test_a_delivery_that_another_worker_is_taking_is_skipped_without_waiting(
    database_url: str, db: Session
) -> None:
    await hooks.register(db, ["hook"])
    await an_ended_batch(db)
    await fan_out(db)
    async with Session(database_url, "other") as other, other.transaction() as connection:
        await connection.execute("SELECT 1 FROM batchline.hook_deliveries FOR UPDATE")
        async with asyncio.timeout(25):
            assert await take(db, "hook") is None
    assert await take(db, "hook") is not None


async def test_a_delivery_of_a_dead_worker_is_taken_again_after_its_lease_and_a_late_report_is_refused(
    db: Session,
) -> None:
    await hooks.register(db, ["hook"])
    await an_ended_batch(db)
    await fan_out(db)
    dead = await must_take(db, "hook")
    assert await take(db, "hook") is None
    await pass_seconds(db, LEASE + 1)
    second = await must_take(db, "hook")
    assert (second.event_id, second.attempt) == (dead.event_id, 2)
    assert await settle(db, dead, DONE) is None
    assert await states(db) == {"hook": ("running", 2)}
    assert await settle(db, second, DONE) is False
    assert await states(db) == {"hook": ("delivered", 2)}


async def test_a_failed_delivery_waits_for_its_delay_and_keeps_the_error_and_the_output(db: Session) -> None:
    await hooks.register(db, ["hook"])
    await an_ended_batch(db)
    await fan_out(db)
    assert await settle(db, await must_take(db, "hook"), BROKEN, delay=100.0) is False
    (delivery,) = await hooks.deliveries(db, limit=1)
    assert (delivery.state, delivery.last_error, delivery.last_output) == (
        "waiting",
        BROKEN.error,
        BROKEN.output,
    )
    assert await take(db, "hook") is None
    await pass_seconds(db, 101)
    assert (await must_take(db, "hook")).attempt == 2


async def test_a_delivery_that_failed_too_often_is_abandoned_and_never_taken_again(db: Session) -> None:
    await hooks.register(db, ["hook"])
    await an_ended_batch(db)
    await fan_out(db)
    assert await settle(db, await must_take(db, "hook"), BROKEN, max_attempts=2) is False
    assert await settle(db, await must_take(db, "hook"), BROKEN, max_attempts=2) is True
    assert await states(db) == {"hook": ("abandoned", 2)}
    assert await take(db, "hook") is None


async def test_a_request_makes_the_deliveries_of_a_batch_due_but_not_those_delivered_or_running(
    db: Session,
) -> None:
    batch, other = await an_ended_batch(db), await an_ended_batch(db)
    names = ["abandoned", "delivered", "new", "running", "waiting"]
    await hooks.request(db, names[:2] + names[3:], batch.id)
    await settle(db, await must_take(db, "abandoned"), BROKEN, max_attempts=1)
    await settle(db, await must_take(db, "delivered"), DONE)
    await must_take(db, "running")
    await settle(db, await must_take(db, "waiting"), BROKEN, delay=100.0)

    await hooks.request(db, names, batch.id)
    taken = [await take(db, name, batch_id=batch.id) for name in names]
    assert [each and each.attempt for each in taken] == [2, None, 1, None, 2]
    assert await take(db, *names, batch_id=other.id) is None

    await pass_seconds(db, LEASE + 1)
    await hooks.request(db, names, batch.id)
    assert (await must_take(db, "running")).attempt == 2


async def test_a_poll_reports_deliveries_to_the_workers_own_hooks_only(db: Session) -> None:
    await hooks.register(db, ["ours"])
    await an_ended_batch(db)
    await fan_out(db)
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '5 minutes'")
    assert not (await spans.poll(db, new_id(), Scope())).hooks_due
    assert not (await spans.poll(db, new_id(), Scope(), ["theirs"])).hooks_due
    assert (await spans.poll(db, new_id(), Scope(), ["ours"])).hooks_due
    await settle(db, await must_take(db, "ours"), BROKEN, delay=200.0)
    later = await spans.poll(db, new_id(), Scope(), ["ours"])
    assert not later.hooks_due
    assert later.next_due is not None
    assert 100 < later.next_due <= 200


async def test_a_hook_that_no_worker_has_is_forgotten_after_a_week_and_its_deliveries_abandoned(
    db: Session,
) -> None:
    week = tasks.HOOKS_KEPT.total_seconds()
    await hooks.register(db, ["gone", "kept"])
    batch = await an_ended_batch(db)
    await fan_out(db)
    await hooks.request(db, ["of a run"], batch.id)
    await pass_seconds(db, week - 60)
    assert await hooks.forget(db, week) == 0
    await pass_seconds(db, 120)
    await hooks.register(db, ["kept"])
    assert await hooks.forget(db, week) == 2
    assert await states(db) == {
        "gone": ("abandoned", 0),
        "of a run": ("abandoned", 0),
        "kept": ("waiting", 0),
    }
    await an_ended_batch(db)
    assert await fan_out(db) == 1


async def test_ended_deliveries_are_listed_for_a_month(db: Session) -> None:
    await hooks.register(db, ["done", "open"])
    await an_ended_batch(db)
    await fan_out(db)
    await settle(db, await must_take(db, "done"), DONE)
    month = EVENTS_KEPT
    assert await hooks.drop_old(db, month) == 0
    await pass_seconds(db, month + 60)
    assert await hooks.drop_old(db, month) == 1
    assert list(await states(db)) == ["open"]


async def test_maintenance_forgets_hooks_and_drops_old_deliveries(db: Session, tmp_path: Path) -> None:

    await hooks.register(db, ["done", "open"])
    await an_ended_batch(db)
    await fan_out(db)
    await settle(db, await must_take(db, "done"), DONE)
    await pass_seconds(db, tasks.HOOKS_KEPT.total_seconds() + 60)
    await tasks.run_due(db, Objects.at(tmp_path), keep_events=EVENTS_KEPT)
    assert await states(db) == {"done": ("delivered", 1), "open": ("abandoned", 0)}
    assert await sql(db, "SELECT count(*) FROM batchline.hooks") == [(0,)]
    await pass_seconds(db, EVENTS_KEPT)
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
    await tasks.run_due(db, Objects.at(tmp_path), keep_events=EVENTS_KEPT)
    assert await states(db) == {}

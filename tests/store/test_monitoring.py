"""What metrics and autoscalers read of the database."""

import asyncio
from collections.abc import Sequence

import psycopg
import pytest

from batchline.batches import creation, maintenance
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, KeyLoad, RunSettings, StepPlan
from batchline.store import batches, monitoring, providers, spans
from batchline.store.monitoring import DemandRow, MonitoringSession
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import WorkerId
from batchline.store.statements import Statement
from tests.support.builders import (
    LATER,
    a_batch,
    a_file,
    a_worker,
    complete,
    completed,
    deferred,
    kill,
    overrun,
    park,
    run_to_the_end,
    sql,
    take,
)

URL = "http://gpu.example/v1"
HOUR = 3600.0
NAMES = {"small": "one", "large": "two", "model": "one"}


async def demand(db: Session) -> list[DemandRow]:
    return await monitoring.demand(db, NAMES, "rest")


async def only(db: Session) -> DemandRow:
    (row,) = await demand(db)
    return row


async def report(db: Session, worker: WorkerId, *loads: KeyLoad) -> None:
    await spans.renew(db, worker, loads)


# Demand


async def test_waiting_lines_are_counted_by_upstream_and_model(db: Session) -> None:
    await a_batch(db, {"small": 3, "large": 2, "unlisted": 4})
    await a_batch(db, {"small": 5}, upstream=URL)
    await a_batch(db, 100, upstream=URL, reserved=True)
    assert [(row.upstream, row.model, row.waiting) for row in await demand(db)] == [
        (URL, "small", 5),
        ("rest", "unlisted", 4),
        ("one", "small", 3),
        ("two", "large", 2),
    ]


async def test_waiting_items_of_a_python_operation_are_counted_under_its_name(db: Session) -> None:
    batch = await a_batch(db, 3)
    await sql(
        db, "UPDATE batchline.lanes SET key = 'python:resize' WHERE batch_id = %(batch)s", batch=batch.id
    )
    assert ((await only(db)).upstream, (await only(db)).waiting) == ("python:resize", 3)


async def test_lines_that_a_worker_holds_do_not_wait_and_those_to_be_tried_again_do(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 10)
    items = await take(db, worker, 6)
    await spans.settle(db, worker.id, [completed(items[0]), deferred(items[1]), deferred(items[2], LATER)])
    assert (await only(db)).waiting == 4 + 2
    # Of a lane whose cursor is at its end, too.
    await take(db, worker, 5)
    assert (await only(db)).waiting == 1


async def test_paused_and_ended_batches_demand_nothing(db: Session) -> None:
    paused, overdue, worker = await a_batch(db, 3), await a_batch(db, 3), a_worker()
    await batches.close(db, paused.id, "pause")
    await overrun(db, overdue.id)
    assert await demand(db) == []
    await a_batch(db, 2)
    await run_to_the_end(db, worker)
    assert await demand(db) == []


async def test_reports_of_live_workers_are_added_up(db: Session) -> None:
    first, second, dead = a_worker(), a_worker(), a_worker()
    await report(
        db, first, KeyLoad("small", "small", 5, 2.0, False), KeyLoad("large", "large", 1, 0.5, False)
    )
    await report(db, second, KeyLoad("small", "small", 7, 1.0, True))
    await report(db, dead, KeyLoad("small", "small", 1000, 1000.0, False))
    await kill(db, dead)
    # A later report replaces the one before.
    await report(db, second, KeyLoad("small", "small", 8, 1.5, True))
    small, large = sorted(await demand(db), key=lambda row: row.upstream)
    assert (small.in_flight, small.rate, small.workers, small.limited) == (13, 3.5, 2, True)
    assert (large.in_flight, large.rate, large.workers, large.limited) == (1, 0.5, 1, False)


async def test_the_report_of_a_worker_goes_with_the_worker(db: Session) -> None:
    left, swept = a_worker(), a_worker()
    for worker in (left, swept):
        await report(db, worker, KeyLoad("small", "small", 5, 2.0, False))
    await spans.leave(db, left.id)
    await kill(db, swept)
    await sql(db, "DELETE FROM batchline.workers WHERE lease_until < now()")
    assert await sql(db, "SELECT * FROM batchline.worker_reports") == []


async def test_the_required_rate_meets_every_deadline_not_only_the_last(db: Session) -> None:
    # 3,600 lines in an hour need 1 line/s; 3,600 more by the second hour need no more.
    await a_batch(db, 3_600, window=HOUR)
    await a_batch(db, 3_600, window=2 * HOUR)
    assert (await only(db)).required == pytest.approx(1.0, rel=0.01)
    # But 21,600 more by then need (3,600 + 3,600 + 21,600) / 7,200 s.
    await a_batch(db, 21_600, window=2 * HOUR)
    row = await only(db)
    assert row.required == pytest.approx(4.0, rel=0.01)
    assert row.next_deadline == pytest.approx(HOUR, abs=60)


async def test_the_margin_is_what_the_present_rate_leaves_before_the_tightest_deadline(db: Session) -> None:
    await a_batch(db, 1_000, window=HOUR)
    await a_batch(db, 8_000, window=2 * HOUR)
    assert (await only(db)).margin == pytest.approx(HOUR, abs=60), "without a rate, until the deadline"
    await report(db, a_worker(), KeyLoad("model", "model", 0, 1.0, False))
    row = await only(db)
    assert row.margin == pytest.approx(2 * HOUR - 9_000, abs=60)
    assert row.required == pytest.approx(9_000 / (2 * HOUR), rel=0.01)


async def test_a_batch_without_a_deadline_requires_no_rate(db: Session) -> None:
    await a_batch(db, 10, window=None)
    row = await only(db)
    assert (row.waiting, row.required, row.margin, row.next_deadline) == (10, 0.0, None, None)


async def test_work_waits_since_its_batch_began_or_since_it_came_due_again(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 10)
    ago = "UPDATE batchline.batches SET in_progress_at = now() - interval '50 seconds' WHERE id = %(id)s"
    await sql(db, ago, id=batch.id)
    assert (await only(db)).waited == pytest.approx(50, abs=10)
    items = await take(db, worker, 2)
    assert (await only(db)).waited is None, "its lines are being claimed"
    await spans.settle(db, worker.id, [deferred(items[0], LATER)])
    assert (await only(db)).waited is None, "not due yet"
    await sql(
        db,
        "UPDATE batchline.spans SET available_at = now() - interval '20 seconds' WHERE worker_id IS NULL",
    )
    assert (await only(db)).waited == pytest.approx(20, abs=10)


async def test_an_upstream_whose_provider_works_on_tasks_is_listed_without_waiting_lines(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 2, upstream=URL)
    items = await take(db, worker, 2)
    for number, item in enumerate(items):
        await park(db, worker, [item], f"task-{number}", upstream=URL, delay=LATER)
    row = await only(db)
    assert (row.upstream, row.model, row.waiting, row.tasks) == (URL, None, 0, True)


async def test_pairs_of_upstream_and_model_are_limited_to_those_with_the_most_waiting_lines(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "MAX_DEMAND_ROWS", 2)
    await a_batch(db, {"a": 1, "b": 3, "c": 2})
    assert [(row.model, row.waiting) for row in await demand(db)] == [("b", 3), ("c", 2)]


# Open batches and maintenance


async def test_batches_are_counted_by_what_keeps_them(db: Session) -> None:
    worker = a_worker()
    await a_batch(db)
    paused, stopped, closing, overdue = [await a_batch(db) for _ in range(4)]
    held = await a_batch(db)
    items = await take(db, worker, 100)
    await batches.close(db, paused.id, "pause")
    await sql(
        db,
        "UPDATE batchline.batches SET paused_at = now(), paused_by = 'max_failed' WHERE id = %(id)s",
        id=stopped.id,
    )
    await batches.close(db, closing.id, "cancel")
    await overrun(db, overdue.id)
    await sql(db, "UPDATE batchline.batches SET held_at = now() WHERE id = %(id)s", id=held.id)
    finished = await a_batch(db, 1)
    await complete(db, worker, await take(db, worker, 1))
    await sql(
        db,
        "UPDATE batchline.batches SET finalizing_at = now() - interval '40 seconds', finalize_error = 'x'"
        " WHERE id = %(id)s",
        id=finished.id,
    )
    found = await monitoring.open_batches(db)
    assert len(items) == 18
    assert (found.paused, found.stopped) == (1, 1)
    assert (found.in_progress, found.held, found.closing, found.overdue) == (2, 1, 1, 1)
    assert (found.finalizing, found.failed) == (1, 1)
    assert found.age == pytest.approx(40, abs=10)


async def test_without_open_batches_nothing_is_counted(db: Session) -> None:
    await a_batch(db, 1)
    worker = a_worker()
    await run_to_the_end(db, worker)
    await sql(db, "UPDATE batchline.batches SET completed_at = now()")
    assert await monitoring.open_batches(db) == monitoring.OpenBatches(0, 0, 0, 0, 0, 0, 0, 0, 0.0)


async def test_a_maintenance_task_is_overdue_from_its_time_on(db: Session) -> None:
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 hour'")
    await sql(
        db,
        "UPDATE batchline.maintenance_tasks SET due_at = now() - interval '70 seconds' WHERE name = 'sweep'",
    )
    delays = {each.task: each.seconds for each in await monitoring.maintenance_delays(db)}
    assert delays.pop("sweep") == pytest.approx(70, abs=10)
    assert {"orphans", "retention", "unfrozen", "uploads"} <= delays.keys()
    assert set(delays.values()) == {0.0}


async def pending(db: Session) -> dict[str, float]:
    """What any worker must do, and by how many seconds it is overdue."""
    return {each.task: each.seconds for each in await monitoring.maintenance_delays(db) if each.pending}


async def test_a_step_needs_a_worker_when_it_is_due_and_its_lines_do_not_wait_before(db: Session) -> None:
    settings = RunSettings(steps=StepPlan(("2",), growth=1.0, pause=HOUR))
    file_id = await a_file(db, {"small": 6})
    batch = await creation.create(db, tenant=DEFAULT_TENANT, file_id=file_id, window="24h", settings=settings)
    assert (await only(db)).waiting == 2
    worker = a_worker()
    await complete(db, worker, await take(db, worker, 10))
    assert (await demand(db), await pending(db)) == ([], {})
    await sql(
        db,
        "UPDATE batchline.batches SET next_step_at = now() - interval '30 seconds' WHERE id = %(id)s",
        id=batch.id,
    )
    assert await pending(db) == {"steps": pytest.approx(30, abs=10)}


async def test_lines_in_spans_that_a_step_holds_back_do_not_wait(db: Session) -> None:
    await a_batch(db, 5)
    worker = a_worker()
    items = await take(db, worker, 5)
    await spans.settle(db, worker.id, [deferred(item) for item in items])
    assert (await only(db)).waiting == 5
    await sql(db, "UPDATE batchline.spans SET available_at = '9999-12-31 00:00:00+00'")
    assert await demand(db) == []


async def test_actions_erasures_events_and_webhooks_need_a_worker(db: Session) -> None:
    assert await pending(db) == {}
    # A worker has it.
    await sql(
        db,
        "INSERT INTO batchline.bulk_actions"
        " (id, tenant, actor, role, alone, action, filter, matching, due_at) VALUES"
        " (gen_random_uuid(), 'default', 'anna', 'admin', false, 'pause', '{}', 1,"
        " now() + interval '1 hour')",
    )
    assert await pending(db) == {"actions": 0.0}
    await sql(db, "UPDATE batchline.bulk_actions SET ended_at = now()")
    await sql(db, "INSERT INTO batchline.tenants (name, erasing_at) VALUES ('acme', now())")
    assert set(await pending(db)) == {"erasure"}
    await sql(db, "UPDATE batchline.tenants SET erasing_at = NULL")
    await sql(
        db,
        "INSERT INTO batchline.webhooks (id, tenant, name, url, secret, events, due_at) VALUES"
        " (gen_random_uuid(), 'default', 'x', 'http://x.example', 'x', '{batch.completed}',"
        " now() - interval '30 seconds')",
    )
    assert await pending(db) == {"webhooks": pytest.approx(30, abs=10)}


async def test_maintenance_reports_what_it_found(db: Session, tmp_path: object) -> None:
    found: dict[str, int] = {}
    stuck = await a_batch(db, 1)
    await run_to_the_end(db, a_worker())
    # As after a bug: all lines have an outcome, and finalizing has not begun.
    await sql(db, "UPDATE batchline.batches SET finalizing_at = NULL WHERE id = %(id)s", id=stuck.id)
    overdue = await a_batch(db)
    await overrun(db, overdue.id)
    file = await a_file(db, {"model": 7})
    await sql(db, "DELETE FROM batchline.files WHERE id = %(id)s", id=file)
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() - interval '1 second'")

    def count(kind: str, items: int) -> None:
        found[kind] = found.get(kind, 0) + items

    await maintenance.run_due(db, Objects.at(f"{tmp_path}/objects"), on_found=count)
    assert found == {maintenance.EXPIRED: 1, maintenance.UNFROZEN: 1, maintenance.ORPHAN_ROWS: 8}
    assert set(found) <= set(maintenance.FINDINGS)


# The database server


async def test_dead_rows_of_the_hot_tables_are_those_of_the_statistics(
    db: Session, database_url: str
) -> None:
    batch = await a_batch(db)

    async def dead() -> int:
        # Statistics arrive when their session is idle or ends; a reader keeps what it has seen within one
        # transaction only.
        await sql(db, "SELECT pg_stat_force_next_flush()")
        counts = {each.table: each for each in await monitoring.row_counts(db)}
        assert {"batches", "lanes", "spans", "workers", "cursors", "counters", "results"} == counts.keys()
        return counts["batches"].dead

    # While a snapshot is held, no row is removed in passing.
    with psycopg.connect(database_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        for _ in range(20):
            await sql(db, "UPDATE batchline.batches SET endpoint = endpoint WHERE id = %(id)s", id=batch.id)
        async with asyncio.timeout(120):
            while await dead() < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_snapshot_that_is_held_has_an_age_and_its_end_ends_it(db: Session, database_url: str) -> None:
    with psycopg.connect(database_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        for _ in range(3):
            await a_batch(db)
        first = await monitoring.oldest_snapshot(db)
        assert first.seconds > 0
        assert first.transactions >= 3
        assert (await monitoring.oldest_snapshot(db)).seconds > first.seconds
        holder.rollback()
        assert (await monitoring.oldest_snapshot(db)).transactions < 3


async def test_connections_are_those_of_the_server_and_of_batchline(db: Session, database_url: str) -> None:
    before = await monitoring.connections(db)
    with psycopg.connect(database_url, application_name="batchline other"):
        after = await monitoring.connections(db)
    assert after.allowed > after.used >= after.own > before.own >= 0


# What reading costs


async def everything(session: Session) -> Sequence[object]:
    return (
        await monitoring.demand(session, NAMES, "rest"),
        await monitoring.open_batches(session),
        await monitoring.maintenance_delays(session),
        await monitoring.row_counts(session),
        await monitoring.oldest_snapshot(session),
        await monitoring.connections(session),
        await providers.counts(session, spans.Scope()),
    )


async def test_readers_wait_for_no_lock_that_claims_and_settles_take(db: Session, database_url: str) -> None:
    await a_batch(db, 3)
    async with Session(database_url, "holder") as holder, holder.transaction() as connection:
        # Readers may pass; whoever locks a row has to wait.
        await connection.execute(
            b"LOCK TABLE batchline.batches, batchline.lanes, batchline.spans, batchline.workers,"
            b" batchline.worker_reports, batchline.cursors, batchline.counters,"
            b" batchline.maintenance_tasks IN EXCLUSIVE MODE"
        )
        async with asyncio.timeout(60), MonitoringSession(database_url, 60.0) as session:
            assert len(await everything(session)) == 7


async def test_the_server_ends_a_statement_of_a_monitor_after_its_limit(database_url: str) -> None:
    async with MonitoringSession(database_url, 1.0) as session:
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            await session.rows(Statement("slow", "SELECT pg_sleep(600)"), {})


async def test_a_monitor_cannot_write(database_url: str) -> None:
    async with MonitoringSession(database_url, 60.0) as session:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await session.rows(Statement("write", "DELETE FROM batchline.workers"), {})


async def test_the_limit_of_a_monitor_does_not_stay_with_the_connection(database_url: str) -> None:
    async with MonitoringSession(database_url, 60.0) as session:
        await monitoring.connections(session)
        async with session.open_ended() as connection:
            cursor = await connection.execute("SHOW statement_timeout")
            assert await cursor.fetchone() == ("0",)

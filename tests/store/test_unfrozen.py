"""The safety net: a batch whose lines have all ended, but that was never finalized, is found and repaired."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches import maintenance as tasks
from batchline.files.objects import Objects
from batchline.model import Batch
from batchline.store import batches, maintenance
from batchline.store.doctor import examine
from batchline.store.session import Session
from tests.support.builders import (
    a_batch,
    a_worker,
    complete,
    finalize,
    read,
    run_to_the_end,
    sql,
    take,
    until,
)

DUE = "UPDATE batchline.maintenance_tasks SET due_at = now() - interval '1 second' WHERE name = 'unfrozen'"
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
OFTEN = "SELECT due_at - ran_at <= interval '10 min' FROM batchline.maintenance_tasks WHERE name = 'unfrozen'"
ENDED = "UPDATE batchline.batches SET finalizing_at = now(), completed_at = now() WHERE id = %s"


async def unfreeze(db: Session, batch: Batch, *, appended: bool) -> None:
    """Undo by hand what the last settle did: the counters are in the row, or appended as before."""
    await sql(
        db,
        "UPDATE batchline.batches SET finalizing_at = NULL WHERE id = %(batch)s",
        batch=batch.id,
    )
    if appended:
        await sql(
            db,
            """
            WITH batch AS (SELECT * FROM batchline.batches WHERE id = %(batch)s),
            appended AS (
                INSERT INTO batchline.counters (
                    batch_id, completed, failed,
                    input_tokens, cached_tokens, output_tokens, reasoning_tokens
                )
                SELECT id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens
                FROM batch
            )
            UPDATE batchline.batches SET completed = 0, failed = 0 WHERE id = %(batch)s
            """,
            batch=batch.id,
        )


async def a_stuck_batch(db: Session, *, appended: bool = True) -> Batch:
    batch = await a_batch(db, {"small": 3, "large": 2})
    await run_to_the_end(db, a_worker())
    await unfreeze(db, batch, appended=appended)
    return batch


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("paused", [False, True])
async def test_maintenance_finalizes_a_batch_that_was_left_with_no_line_unfinished(
    db: Session, tmp_path: Path, appended: bool, paused: bool
) -> None:
    batch = await a_stuck_batch(db, appended=appended)
    if paused:
        assert await batches.close(db, batch.id, "pause")
    assert [finding.check for finding in (await examine(db)).findings] == ["finalizing"]
    await sql(db, DUE)
    await tasks.run_due(db, Objects.at(tmp_path))
    repaired = await read(db, batch)
    assert repaired.finalizing_at is not None
    assert (repaired.completed, repaired.failed) == (5, 0)
    ended = await finalize(db, a_worker(), batch)
    assert ended.completed_at is not None
    assert (await examine(db)).findings == ()


async def test_batches_with_unfinished_lines_are_left_alone(db: Session) -> None:
    worker = a_worker()
    untouched, begun, held = await a_batch(db, 3), await a_batch(db, 3), await a_batch(db, 3)
    items = await take(db, worker, 6)
    await complete(db, worker, [item for item in items if item.claim.batch_id == begun.id][:2])
    assert await maintenance.unfrozen(db) == []
    for batch in (untouched, begun, held):
        assert not await maintenance.freeze_finished(db, batch.id)


async def test_a_span_that_is_left_keeps_a_batch_open_whatever_its_counters_say(db: Session) -> None:
    batch = await a_batch(db, 3)
    await take(db, a_worker())
    await sql(db, "UPDATE batchline.batches SET completed = total WHERE id = %(batch)s", batch=batch.id)
    assert await maintenance.unfrozen(db) == []
    assert not await maintenance.freeze_finished(db, batch.id)


async def test_two_workers_that_repair_a_batch_freeze_it_once(database_url: str, db: Session) -> None:
    batch = await a_stuck_batch(db)
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        async with one.transaction() as connection:
            cursor = await connection.execute("SELECT batchline.freeze_finished_v1(%s)", [batch.id])
            assert await cursor.fetchone() == (True,)
            second = asyncio.create_task(maintenance.freeze_finished(two, batch.id))
            await until(lambda: _waits(db))
        assert await second is False
    assert await sql(db, "SELECT count(*) FROM batchline.counters") == [(0,)]


async def test_a_repair_that_waited_for_a_settle_sees_what_it_committed(
    database_url: str, db: Session
) -> None:
    """The batch looked finished to the search; meanwhile it is being finalized and has ended."""
    batch = await a_stuck_batch(db, appended=False)
    async with Session(database_url, "one") as one:
        async with one.transaction() as connection:
            await connection.execute(ENDED, [batch.id])
            second = asyncio.create_task(maintenance.freeze_finished(db, batch.id))
            async with Session(database_url, "watch") as watch:
                await until(lambda: _waits(watch))
        assert await second is False


async def test_the_task_runs_at_least_every_ten_minutes(db: Session) -> None:
    for _ in range(50):
        await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
        await sql(db, DUE)
        assert await maintenance.take_task(db) == "unfrozen"
        assert await sql(db, OFTEN) == [(True,)]


async def _waits(db: Session) -> bool:
    return bool(await sql(db, WAITS))

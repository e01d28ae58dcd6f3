"""A batch is deleted with all that belongs to it and nothing else, also if it was deleted by hand."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches import deletion, maintenance, retention
from batchline.batches.deletion import NotDeletable
from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch, RunSettings, TaskParked
from batchline.store import batches, doctor, files, providers, spans
from batchline.store import deletion as store_deletion
from batchline.store.session import Session, run
from batchline.store.spans import Scope
from batchline.store.statements import statement
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    completed,
    failed,
    kill,
    park,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.governance import somebody_waits
from tests.support.scenes import Stage, database

TABLES = (
    *("batches", "lanes", "cursors", "counters", "spans", "results", "retry_attempts"),
    *("deleted_lanes", "lines", "file_lanes", "failure_causes", "cause_counts", "failure_pauses"),
)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


async def rows(db: Session) -> dict[str, int]:
    """The number of rows of all tables that have any."""
    query = ", ".join(f"(SELECT count(*)::integer FROM batchline.{table})" for table in TABLES)
    ((*numbers,),) = await sql(db, f"SELECT {query}")
    return {table: number for table, number in zip(TABLES, numbers, strict=True) if number}


async def half_run(db: Session, lines: int = 12) -> Batch:
    """A batch with results, retries, a task, and a worker that holds the rest of its first lines."""
    batch, worker = await a_batch(db, {"a": lines // 2, "b": lines - lines // 2}), a_worker()
    items = await take(db, worker, lines - 4, Scope(batch_id=batch.id))
    first = [item for item in items if item.claim.span_id == items[0].claim.span_id]
    await spans.settle(db, worker.id, [completed(first[0]), failed(first[1]), retry(first[2], LATER)])
    await park(db, worker, [first[3]], f"task of {batch.id}")
    return batch


async def ended(db: Session, objects: Objects) -> Batch:
    batch = await half_run(db)
    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
    await sql(db, "UPDATE batchline.spans SET available_at = now() WHERE worker_id IS NULL")
    await run_to_the_end(db, a_worker())
    done = await finalize_one(db, objects, a_worker(), batch.id)
    assert done is not None
    return done


async def delete_by_hand(db: Session, batch: Batch) -> None:
    await sql(db, "DELETE FROM batchline.batches WHERE id = %(id)s", id=batch.id)


async def maintain(db: Session, objects: Objects) -> None:
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
    await maintenance.run_due(db, objects)


# By hand


async def test_what_is_left_of_a_batch_that_was_deleted_by_hand_is_deleted(
    db: Session, objects: Objects
) -> None:
    kept = await half_run(db)
    before = await rows(db)
    await delete_by_hand(db, await half_run(db))
    assert (await rows(db))["results"] == 2 * before["results"]
    assert (await doctor.examine(db)).clean, "until then, nothing is wrong"

    await maintain(db, objects)

    # The lines belong to the file, which is still there.
    lines = {"lines": 2 * before["lines"], "file_lanes": 2 * before["file_lanes"]}
    assert await rows(db) == before | lines
    assert (await doctor.examine(db)).clean
    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
    await sql(db, "UPDATE batchline.spans SET available_at = now() WHERE worker_id IS NULL")
    await run_to_the_end(db, a_worker())
    assert (await read(db, kept)).finished == kept.total, "the other batch runs to its end"


async def test_it_is_deleted_in_chunks_until_the_time_is_used_up(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_deletion, "CHUNK", 2)
    batch, worker = await a_batch(db, 7), a_worker()
    await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker, 6)])
    await delete_by_hand(db, batch)
    for left in (4, 2):
        assert not await retention.drop_deleted_batches(db, seconds=0)
        assert (await rows(db))["results"] == left
    assert await retention.drop_deleted_batches(db)
    assert set(await rows(db)) == {"lines", "file_lanes"}


async def test_when_nothing_was_deleted_the_clean_up_reads_nothing(db: Session) -> None:
    """Not one row, whatever the number of results, spans and lanes."""
    await half_run(db)
    read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
    async with db.open_ended() as connection, connection.transaction():
        before = await (await connection.execute(read.encode())).fetchone()
        await run(connection, statement("drop_deleted_lanes"), {"batch": None, "chunk": 5000})
        after = await (await connection.execute(read.encode())).fetchone()
    assert after == before


async def test_a_worker_whose_batch_was_deleted_goes_on_with_others(db: Session, objects: Objects) -> None:
    worker, gone = a_worker(), await a_batch(db, 2)
    lost = await take(db, worker)
    other = await a_batch(db, 2)
    await delete_by_hand(db, gone)
    items = await take(db, worker)
    settled = await spans.settle(db, worker.id, [completed(item) for item in (*lost, *items)])
    assert [(row.batch_id, row.ended, row.finished) for row in settled] == [(other.id, 2, True)]
    await maintain(db, objects)
    assert (await rows(db))["results"] == 2


# By command


async def test_an_ended_batch_is_deleted_with_its_rows_and_objects(db: Session, objects: Objects) -> None:
    batch = await ended(db, objects)
    made = [await files.get(db, id) for id in (batch.output_file_id, batch.error_file_id) if id]
    keys = [file.object_key for file in made if file and file.object_key]
    assert len(keys) == 2
    assert all([await objects.exists(key) for key in keys])

    deleted = await deletion.delete(db, objects, batch, force=False)

    assert await rows(db) == {}, "the lines too: a command had ingested them, and no other batch uses them"
    assert not any([await objects.exists(key) for key in keys])
    # Results, one attempt, two lanes of lines.
    assert (deleted.rows, deleted.files, deleted.later) == (12 + 1 + 12 + 2, 3, None)
    assert (await doctor.examine(db, object_exists=objects.exists)).clean


async def test_a_batch_that_has_not_ended_is_refused_and_deleted_by_force(
    db: Session, objects: Objects
) -> None:
    batch = await half_run(db)
    before = await rows(db)
    with pytest.raises(NotDeletable, match=r"in_progress.*--force"):
        await deletion.delete(db, objects, batch, force=False)
    assert await rows(db) == before
    await deletion.delete(db, objects, batch, force=True)
    assert await rows(db) == {}


async def test_a_batch_and_its_input_can_be_deleted_at_once(
    database_url: str, db: Session, objects: Objects
) -> None:
    """Both lock the input before the row of the tenant, in which they count the bytes that are given back."""
    batch = await ended(db, objects)
    file = {"file": batch.file_id, "tenant": batch.tenant}
    await sql(db, "UPDATE batchline.files SET bytes = 100 WHERE id = %(file)s", **file)
    async with Session(database_url, "other") as other, Session(database_url, "watch") as watch:
        async with other.transaction() as connection:
            await run(connection, statement("lock_unused_input"), file)
            deleting = asyncio.create_task(store_deletion.delete(db, batch.id, force=False))
            await somebody_waits(watch)
            assert await run(connection, statement("delete_file"), file)
        assert await deleting is not None
    assert (await doctor.examine(db)).clean


async def noted(db: Session) -> list[tuple[str, str, str, str | None]]:
    """The tasks to cancel, by what their provider needs to know."""
    tasks = await providers.take_abandoned(db, Scope())
    claims = [(task.task_id, task.item.claim) for task in tasks]
    return [(task_id, claim.url, claim.model, claim.settings.upstream) for task_id, claim in claims]


async def test_the_tasks_of_a_running_batch_are_noted_although_a_worker_holds_other_items(
    db: Session, objects: Objects
) -> None:
    batch = await half_run(db)
    await batches.change_settings(db, batch.id, RunSettings("http://provider"))
    await deletion.delete(db, objects, batch, force=True)
    assert await noted(db) == [(f"task of {batch.id}", "/v1/chat/completions", "a", "http://provider")]


async def test_the_tasks_of_a_cancelled_batch_are_noted_and_outlive_its_deletion(
    db: Session, objects: Objects
) -> None:
    """It is concluded by the cancellation, because no worker holds anything."""
    batch, worker = await a_batch(db, 2), a_worker()
    await spans.settle(
        db, worker.id, [TaskParked(item, f"task-{item.line_no}", 0.0) for item in await take(db, worker)]
    )
    await deletion.delete(db, objects, batch, force=True)
    assert [task_id for task_id, *_ in await noted(db)] == ["task-1", "task-2"]


async def test_a_task_that_is_accepted_after_its_batch_was_deleted_is_noted(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    (item,) = await take(db, worker)
    await deletion.delete(db, objects, batch, force=True)
    assert await spans.settle(db, worker.id, [TaskParked(item, "late", 0.0)]) == []
    assert await noted(db) == [("late", "/v1/chat/completions", "model", None)]


async def test_a_late_task_of_a_batch_that_still_runs_is_left_to_the_worker_that_has_the_item(
    db: Session,
) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 1)
    (item,) = await take(db, lost)
    await kill(db, lost)
    await take(db, heir)
    await spans.settle(db, lost.id, [TaskParked(item, "late", 0.0)])
    assert await noted(db) == []


def test_a_deletion_waits_for_a_park_and_notes_its_task(server_url: str, template: str) -> None:
    with database(server_url, template) as url, Stage(url) as stage:
        batch, anna, bert = stage.batch(5), stage.hand(), stage.hand()
        items = anna.take(2)
        with anna.holding():
            anna.park(items[:1], "task")
            deleting = stage.meanwhile(bert, lambda: bert.delete(batch.id))
            assert deleting.waits()
        assert deleting.result()
        assert stage.rows("SELECT task_id FROM batchline.abandoned_tasks") == [("task",)]
        assert stage.rows("SELECT FROM batchline.spans") == []


async def test_an_input_that_another_batch_uses_is_kept(db: Session, objects: Objects) -> None:
    first = await ended(db, objects)
    second = await a_batch(db, file_id=first.file_id)
    await deletion.delete(db, objects, first, force=False)
    await run_to_the_end(db, a_worker())
    assert (await read(db, second)).completed == second.total


async def test_an_input_that_a_client_uploaded_is_kept(db: Session, objects: Objects) -> None:
    batch = await ended(db, objects)
    await sql(db, "UPDATE batchline.files SET object_key = 'inputs/x' WHERE id = %(id)s", id=batch.file_id)
    await deletion.delete(db, objects, batch, force=False)
    assert set(await rows(db)) == {"lines", "file_lanes"}


async def test_a_governed_batch_is_refused(db: Session, objects: Objects) -> None:
    batch = await ended(db, objects)
    await sql(db, "UPDATE batchline.batches SET submitted_by = 'ann'")
    with pytest.raises(NotDeletable, match="governed"):
        await deletion.delete(db, objects, batch, force=True)
    assert (await rows(db))["batches"] == 1


async def test_maintenance_deletes_objects_that_the_command_could_not(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await ended(db, objects)
    file = await files.get(db, batch.output_file_id) if batch.output_file_id else None
    assert file is not None
    assert file.object_key is not None

    async def away(keys: object) -> None:
        raise ObjectStoreUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(objects, "delete", away)
        deleted = await deletion.delete(db, objects, batch, force=False)
    assert deleted.later == "the store is away"
    assert await objects.exists(file.object_key)
    await maintain(db, objects)
    assert not await objects.exists(file.object_key)
    assert await rows(db) == {}

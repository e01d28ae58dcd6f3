"""What has had its time goes, in chunks, and nothing that anybody still needs goes with it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from batchline.batches import maintenance, retention
from batchline.batches.finalize import finalize_one, sweep_objects
from batchline.embedded import EmbeddedPostgres
from batchline.files.ingest import InputSource, ingest
from batchline.files.intake import RECORD_WITHIN, Description, FileIntake, arriving
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.files.parsing import ReadingRules
from batchline.model import DEFAULT_TENANT, Batch, File, ids
from batchline.store import batches, doctor, files, outputs, spans
from batchline.store import maintenance as orphans
from batchline.store import retention as chunks
from batchline.store.batches import FileNotFound
from batchline.store.pool import Sessions
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import (
    a_batch,
    a_file,
    a_worker,
    complete,
    completed,
    failed,
    on,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.processes import batchline, simulated
from tests.support.waiting import wait_for

DAY = 86_400.0
AT_ONCE = timedelta(0)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


async def count(db: Session, table: str) -> int:
    ((number,),) = await sql(db, f"SELECT count(*) FROM batchline.{table}")
    return int(number)


async def delete(db: Session, file_id: UUID | None) -> None:
    assert file_id is not None
    assert await files.delete(db, DEFAULT_TENANT, file_id)


async def clear(db: Session, objects: Objects, keep: float | None = None) -> None:
    assert await retention.enforce(db, objects, keep, seconds=600)
    report = await doctor.examine(db, object_exists=objects.exists)
    assert report.clean, report.findings


async def ended(db: Session, objects: Objects, lines: int = 6) -> Batch:
    """A batch with completed, failed and retried items, and its files."""
    batch, worker = await a_batch(db, {"a": lines // 2, "b": lines - lines // 2}), a_worker()
    first, second, *_ = await take(db, worker)
    await spans.settle(db, worker.id, [failed(first), retry(second)])
    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
    await run_to_the_end(db, a_worker())
    done = await finalize_one(db, objects, a_worker(), batch.id)
    assert done is not None
    return done


async def age(db: Session, days: float) -> None:
    """Everything ended so long ago."""
    await sql(
        db,
        "UPDATE batchline.batches SET completed_at = completed_at - make_interval(secs => %(s)s)",
        s=days * DAY,
    )


def somebody_waits(url: str) -> bool:
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url) as watch:
        return bool(watch.execute(query).fetchall())


# Files


async def test_the_lines_of_a_deleted_file_are_purged_and_its_row_is_kept(
    db: Session, objects: Objects
) -> None:
    kept, gone = await a_file(db, {"m": 5}), await a_file(db, {"m": 7, "n": 4})

    await delete(db, gone)
    await clear(db, objects)

    assert await count(db, "lines") == 5
    assert await count(db, "file_lanes") == 1
    file = await files.get(db, gone)
    assert file is not None
    assert file.deleted_at is not None
    assert not await files.delete(db, DEFAULT_TENANT, gone), "it is deleted once"
    assert await files.visible(db, DEFAULT_TENANT, kept) is not None


async def test_lines_are_deleted_in_chunks_until_the_time_is_used_up(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 10)
    await delete(db, await a_file(db, {"m": 25, "n": 5}))

    assert not await retention.enforce(db, objects, None, seconds=0)
    assert await count(db, "lines") == 20
    assert (await doctor.examine(db)).clean, "also half-way"
    assert not await retention.enforce(db, objects, None, seconds=0)
    assert await count(db, "lines") == 10
    await clear(db, objects)
    assert await count(db, "lines") == 0


async def test_the_lines_of_files_whose_row_is_gone_go_and_no_others(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_CHUNK", 10)
    await a_file(db, {"m": 5})
    gone = await a_file(db, {"m": 25, "n": 10})
    await sql(db, "DELETE FROM batchline.files WHERE id = %(id)s", id=gone)

    assert await orphans.drop_orphan_lines(db) == 10
    assert await count(db, "lines") == 30, "a chunk is gone"
    await maintenance.run_due(db, objects)

    assert (await count(db, "lines"), await count(db, "file_lanes")) == (5, 1)
    assert await orphans.drop_orphan_lines(db) == 0
    assert (await doctor.examine(db)).notes == ()


async def test_unfinished_maintenance_is_due_again_at_once(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 10)
    monkeypatch.setattr(retention.enforce, "__kwdefaults__", {"seconds": 0})
    await delete(db, await a_file(db, {"m": 15}))
    await maintenance.run_due(db, objects)
    rows = await sql(db, "SELECT name FROM batchline.maintenance_tasks WHERE due_at <= now()")
    assert rows == [("retention",)]
    for _ in range(5):
        await maintenance.run_due(db, objects)
    assert await sql(db, "SELECT name FROM batchline.maintenance_tasks WHERE due_at <= now()") == []
    assert await count(db, "lines") == 0


async def test_a_batch_over_a_deleted_file_continues_and_loses_nothing(db: Session, objects: Objects) -> None:
    batch, worker = await a_batch(db, 6), a_worker()
    await complete(db, worker, await take(db, worker, 2))

    await delete(db, batch.file_id)
    await clear(db, objects)
    assert await count(db, "lines") == 6

    await complete(db, worker, await take(db, worker, 2))
    assert await batches.close(db, batch.id, "cancel")
    await clear(db, objects)
    done = await finalize_one(db, objects, a_worker(), batch.id)
    assert done is not None
    assert (done.completed, done.total) == (4, 6)
    await clear(db, objects)
    assert await count(db, "lines") == 0

    for file_id, lines in ((done.output_file_id, 4), (done.error_file_id, 2)):
        assert file_id is not None
        file = await files.visible(db, DEFAULT_TENANT, file_id)
        assert file is not None
        assert file.object_key is not None
        content = b"".join([block async for block in objects.read(file.object_key)])
        assert content.count(b"\n") == lines
    assert await count(db, "results") == 4, "results outlive the input"


async def test_no_batch_comes_of_a_file_that_is_being_deleted(
    database_url: str, db: Session, objects: Objects
) -> None:
    """create_batch and delete_file meet at the file's row: one waits, and then sees what the other did."""
    file_id = await a_file(db, {"m": 3})
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM batchline.files WHERE id = %s FOR KEY SHARE", (file_id,))
        deleting = asyncio.create_task(delete(db, file_id))
        await asyncio.to_thread(wait_for, "the deletion to wait", lambda: somebody_waits(database_url))
        assert not deleting.done(), "somebody makes a batch of it right now"
        other.commit()
        await deleting
    with pytest.raises(FileNotFound):
        await a_batch(db, file_id=file_id)


async def test_a_file_whose_time_is_over_is_deleted_with_its_object(
    database_url: str, db: Session, objects: Objects
) -> None:
    stored = await put(db, database_url, objects, b"x", expires_after=3600.0)
    await clear(db, objects)
    assert await objects.exists(key_of(stored))

    await sql(db, "UPDATE batchline.files SET expires_at = now()")
    assert await files.visible(db, DEFAULT_TENANT, stored.id) is None
    await clear(db, objects)

    file = await files.get(db, stored.id)
    assert file is not None
    assert file.deleted_at is not None
    assert not await objects.exists(key_of(stored))


async def test_a_file_that_was_used_up_by_a_command_is_not_found_again(
    database_url: str, db: Session
) -> None:
    content = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m"}}'
    file = await ingest(database_url, [InputSource("x", [content])], tenant=DEFAULT_TENANT, filename="x")
    ((digest,),) = await sql(db, "SELECT digest FROM batchline.files")
    assert await files.find(db, DEFAULT_TENANT, digest) == file
    await delete(db, file.id)
    assert await files.find(db, DEFAULT_TENANT, digest) is None


# Batches


async def test_results_go_when_the_batch_ended_long_ago_and_its_files_stay(
    db: Session, objects: Objects
) -> None:
    old = await ended(db, objects)
    await age(db, 8)
    young, running = await ended(db, objects, 4), await a_batch(db, 3)

    await clear(db, objects, None)
    assert await count(db, "results") == 10
    await clear(db, objects, 7 * DAY)

    assert await count(db, "results") == 4
    assert await sql(db, "SELECT DISTINCT batch_id FROM batchline.retry_attempts") == [(young.id,)]
    purged = await read(db, old)
    assert purged.purging_at is not None
    assert (purged.completed, purged.failed, purged.summary) == (old.completed, old.failed, old.summary)
    assert (await read(db, young)).purging_at is None
    states = await sql(db, "SELECT DISTINCT batch_id FROM batchline.requests")
    assert {batch_id for (batch_id,) in states} == {young.id, running.id}
    assert (await read(db, running)).purging_at is None
    for file_id in (old.output_file_id, old.error_file_id):
        assert file_id is not None
        file = await files.visible(db, DEFAULT_TENANT, file_id)
        assert file is not None
        assert await objects.exists(key_of(file))
    assert await sql(db, "SELECT id FROM batchline.batches WHERE purged_at IS NOT NULL") == [(old.id,)]


async def test_results_go_when_all_files_that_a_batch_made_are_deleted(db: Session, objects: Objects) -> None:
    done = await ended(db, objects)
    await delete(db, done.file_id)
    await delete(db, done.output_file_id)
    await clear(db, objects)
    assert await count(db, "results") == 6, "the error file is still there"

    await delete(db, done.error_file_id)
    await clear(db, objects)

    assert await count(db, "results") == 0
    assert await count(db, "retry_attempts") == 0
    assert [page async for page in objects.pages("outputs/")] == []


async def test_a_batch_that_has_not_ended_keeps_its_results_however_old_it_is(
    db: Session, objects: Objects
) -> None:
    """Running, paused, closing and finalizing: each is as old as the batch whose results go."""
    await ended(db, objects)
    await age(db, 8)
    unfinished = [await a_batch(db, 6) for _ in range(4)]
    worker = a_worker()
    for batch in unfinished:
        one, other = await take(db, worker, 2, Scope(batch_id=batch.id))
        await spans.settle(db, worker.id, [completed(one), retry(other)])
    _, paused, closing, finalizing = unfinished
    assert await batches.close(db, paused.id, "pause")
    await take(db, worker, 1, Scope(batch_id=closing.id))
    assert await batches.close(db, closing.id, "cancel")
    await run_to_the_end(db, worker, Scope(batch_id=finalizing.id))
    assert await batches.claim_finalizing(db, worker, finalizing.id) is not None
    await sql(
        db,
        """
            UPDATE batchline.batches
            SET created_at = created_at - interval '1 year',
                in_progress_at = in_progress_at - interval '1 year',
                cancelling_at = cancelling_at - interval '1 year',
                finalizing_at = finalizing_at - interval '1 year'
            """,
    )

    await clear(db, objects, DAY)

    kept = (
        "SELECT count(*) FROM batchline.results JOIN batchline.lanes ON lanes.id = lane_id"
        " WHERE batch_id = %(id)s"
    )
    found = [(await sql(db, kept, id=batch.id))[0][0] for batch in unfinished]
    assert found == [1, 1, 1, 6]
    assert await count(db, "results") == 9, "those of the batch that ended are gone"
    assert await count(db, "retry_attempts") == 4
    assert len(await sql(db, "SELECT id FROM batchline.batches WHERE purging_at IS NOT NULL")) == 1


async def test_the_doctor_accepts_a_half_purged_batch(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    await ended(db, objects, 7)
    await age(db, 8)
    left = set()
    while not await retention.enforce(db, objects, DAY, seconds=0):
        report = await doctor.examine(db, object_exists=objects.exists)
        assert report.clean, report.findings
        left.add(await count(db, "results"))
    assert left == {7, 5, 3, 1, 0}


async def test_concurrent_purges_do_not_wait_for_each_other(
    database_url: str, db: Session, objects: Objects
) -> None:
    await delete(db, await a_file(db, {"m": 5}))
    await ended(db, objects)
    await age(db, 8)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM batchline.file_lanes FOR UPDATE")
        other.execute("SELECT FROM batchline.results WHERE outcome = 'failed' FOR UPDATE")
        assert await retention.enforce(db, objects, DAY, seconds=600)
        assert await count(db, "results") == 1
        assert await sql(db, "SELECT id FROM batchline.batches WHERE purged_at IS NOT NULL") == []
        assert await sql(db, "SELECT id FROM batchline.files WHERE purged_at IS NOT NULL") == []
    await clear(db, objects, DAY)
    assert await count(db, "results") == 0
    assert len(await sql(db, "SELECT id FROM batchline.files WHERE purged_at IS NOT NULL")) == 1


async def test_a_batch_that_failed_validation_leaves_nothing_to_purge(db: Session, objects: Objects) -> None:
    await sql(
        db,
        """
            INSERT INTO batchline.batches
                (id, tenant, file_id, completion_window, settings, total, expires_at, failed_at)
            VALUES (%(id)s, 'default', %(id)s, '24h', '{}', 0, now(), now() - interval '9 days')
            """,
        id=ids.new_id(),
    )
    await clear(db, objects, DAY)
    assert len(await sql(db, "SELECT id FROM batchline.batches WHERE purged_at IS NOT NULL")) == 1


async def test_old_keys_are_forgotten(db: Session, objects: Objects) -> None:
    for key, days in (("old", 8), ("young", 6)):
        await sql(
            db,
            """
                INSERT INTO batchline.idempotency (tenant, scope, key, fingerprint, object_id, created_at)
                VALUES ('t', 's', %(key)s, '', gen_random_uuid(), now() - make_interval(days => %(days)s))
                """,
            key=key,
            days=days,
        )
    await clear(db, objects)
    assert await sql(db, "SELECT key FROM batchline.idempotency") == [("young",)]


async def test_an_unreachable_object_store_ends_no_worker(
    database_url: str, db: Session, objects: Objects
) -> None:
    class Away(Objects):
        async def delete(self, keys: object) -> None:
            raise ObjectStoreUnavailable("away")

    stored = await put(db, database_url, objects, b"x")
    await delete(db, stored.id)

    await maintenance.run_due(db, Away(objects._store, objects.location))

    assert await sql(db, "SELECT id FROM batchline.files WHERE purged_at IS NOT NULL") == []
    await clear(db, objects)
    assert not await objects.exists(key_of(stored))


# The sweep


async def put(
    db: Session, url: str, objects: Objects, content: bytes, *, expires_after: float | None = None
) -> File:
    """A file of a client's."""
    sessions = Sessions(url)
    intake = FileIntake(url, objects, sessions)

    async def blocks() -> AsyncIterator[bytes]:
        yield content

    try:
        async with arriving(objects) as arrival:
            received = await arrival.write(blocks(), 1000)
            described = Description(DEFAULT_TENANT, "user_data", "x", expires_after)
            return await intake.record(arrival, received, described, ReadingRules())
    finally:
        await intake.close()
        await sessions.close()


def key_of(file: File) -> str:
    assert file.object_key is not None
    return file.object_key


async def test_the_sweep_removes_what_was_never_recorded_and_only_that(
    database_url: str, db: Session, objects: Objects, tmp_path: Path
) -> None:
    recorded = await put(db, database_url, objects, b"x")
    folder = tmp_path / "objects" / "inputs"
    for left in ("whole", "half#1"):
        (folder / left).write_bytes(b"y")

    assert await sweep_objects(db, objects, maintenance.GARBAGE_AGE) == 0, "they may still be recorded"
    assert await sweep_objects(db, objects, AT_ONCE) == 2

    assert [path.name for path in folder.iterdir()] == [recorded.id.hex]


async def test_what_took_longer_than_the_sweep_waits_is_not_recorded(
    database_url: str, db: Session, objects: Objects
) -> None:
    assert timedelta(seconds=RECORD_WITHIN) + timedelta(hours=1) <= maintenance.GARBAGE_AGE
    sessions = Sessions(database_url)
    intake = FileIntake(database_url, objects, sessions)
    try:
        for purpose in ("user_data", "batch"):
            async with arriving(objects) as arrival:
                content = await arrival.write(_nothing(), 1000)
                arrival.began -= RECORD_WITHIN + 1
                with pytest.raises(Exception, match="took too long"):
                    await intake.record(
                        arrival, content, Description("t", purpose, "x", None), ReadingRules()
                    )
    finally:
        await intake.close()
        await sessions.close()
    assert await count(db, "files") == 0
    assert [page async for page in objects.pages("inputs/")] == []


async def _nothing() -> AsyncIterator[bytes]:
    if False:
        yield b""


# Commands


def test_a_run_whose_output_was_deleted_says_so(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}'
    )
    data = tmp_path / "data"
    with simulated() as upstream, EmbeddedPostgres.start(data) as server:
        command = ("run", str(source), "--upstream", upstream.url, "-o", str(target), "--data-dir", str(data))
        first = batchline(*command)
        assert first.returncode == 0, first.stderr
        content = target.read_bytes()

        async def clear_results(db: Session) -> UUID | None:
            await age(db, 8)
            await clear(db, Objects.at(data / "objects"), DAY)
            ((output,),) = await sql(db, "SELECT output_file_id FROM batchline.batches")
            return output  # type: ignore[no-any-return]

        output = on(server.url, clear_results)
        target.unlink()
        again = batchline(*command)
        assert again.returncode == 0, again.stderr
        assert target.read_bytes() == content, "its file is still there"

        on(server.url, lambda db: delete(db, output))
        last = batchline(*command)
        assert last.returncode != 0
        assert "was deleted" in last.stderr
        assert "--fresh" in last.stderr
        assert target.read_bytes() == content, "untouched"


def test_commands_say_what_was_purged(database_url: str, tmp_path: Path) -> None:
    objects = Objects.at(tmp_path / "data" / "objects")
    here = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    elsewhere = ("--database", database_url, "--data-dir", str(tmp_path / "elsewhere"))
    target = tmp_path / "out.jsonl"

    async def make(db: Session) -> tuple[Batch, bytes]:
        done = await ended(db, objects)
        content = b"".join([block async for block in await outputs.lines(db, done.id, "output")])
        await age(db, 8)
        await clear(db, objects, DAY)
        return done, content

    batch, content = on(database_url, make)
    displayed = ids.show(ids.BATCH, batch.id)

    command = batchline("results", displayed, "-o", str(target), *here)
    assert command.returncode == 0, command.stderr
    assert target.read_bytes() == content, "the file has what the database has no more"

    command = batchline("results", displayed, "-o", str(target), "--force", *elsewhere)
    assert command.returncode != 0
    assert "results were deleted on" in command.stderr
    assert target.read_bytes() == content, "untouched"

    on(database_url, lambda db: delete(db, batch.output_file_id))
    command = batchline("results", displayed, *here)
    assert command.returncode != 0
    assert "was deleted" in command.stderr


# Events


async def events(db: Session, count: int, age: float, *, delivered: bool = True) -> None:
    """Events that were created, and delivered, so many seconds ago."""
    await sql(
        db,
        """
        INSERT INTO batchline.outbox (id, batch_id, type, created_at, delivered_at)
        SELECT
            gen_random_uuid(), gen_random_uuid(), 'batch.completed', at, CASE WHEN %(delivered)s THEN at END
        FROM generate_series(1, %(count)s), (VALUES (now() - make_interval(secs => %(age)s))) AS t (at)
        """,
        count=count,
        age=age,
        delivered=delivered,
    )


async def test_delivered_events_are_deleted_in_chunks_and_others_stay(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    await events(db, 5, age=2 * DAY)
    await events(db, 1, age=DAY / 2)
    await events(db, 1, age=2 * DAY, delivered=False)
    assert await retention.enforce(db, objects, None)
    assert await count(db, "outbox") == 7, "without a time they stay"
    for left in (5, 3, 2):
        assert not await retention.enforce(db, objects, None, keep_events=DAY, seconds=0)
        assert await count(db, "outbox") == left
    assert await retention.enforce(db, objects, None, keep_events=DAY, seconds=0)
    assert await count(db, "outbox") == 2

"""Adoption of what only fusillade has: an archive, requests without a batch, deleted batches, outputs."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from batchline.adopt import phases, verification
from batchline.store import batches
from batchline.store.adoption.records import AdoptionRefused, CutoverSettings
from batchline.store.session import Session
from tests.support.builders import read, sql
from tests.support.old_database import OldDatabase

SETTINGS = CutoverSettings("default", False, None, 86_400.0)


@pytest.fixture
def old(database_url: str) -> Iterator[OldDatabase]:
    database = OldDatabase(database_url, "fusillade")
    yield database
    database.close()


async def test_archived_requests_become_results(db: Session, old: OldDatabase) -> None:
    file_id = old.file(4)
    archived, live = old.batch(file_id), old.batch(file_id)
    old.end(archived, range(1, 5), "completed")
    old.run(
        """
        WITH moved AS (DELETE FROM requests WHERE batch_id = %s RETURNING *)
        INSERT INTO batch_requests_archive SELECT *, '2026-01-05'::date FROM moved
        """,
        archived,
    )
    old.run("UPDATE batches SET location = 'archive', archive_bucket = '2026-01-05' WHERE id = %s", archived)
    done = await phases.prepare(db, "public")
    assert (done.shape, done.results) == ("fusillade", 4)
    await phases.cut_over(db, SETTINGS)
    assert (await read(db, archived)).completed == 4
    assert (await read(db, live)).completed == 0
    assert (await verification.verify(db)).findings == []
    await phases.roll_back(db)
    assert old.run("SELECT count(*) FROM batch_requests_archive") == [(4,)]
    assert old.states(live) == {"pending": 4}


async def test_requests_without_a_batch_and_deleted_batches_stay(db: Session, old: OldDatabase) -> None:
    file_id = old.file(2)
    kept, deleted = old.batch(file_id), old.batch(file_id)
    old.end(deleted, (1, 2), "completed")
    old.run("UPDATE batches SET deleted_at = now() WHERE id = %s", deleted)
    old.run(
        """
        INSERT INTO requests (template_id, model, created_by)
        SELECT id, model, 'ada' FROM request_templates LIMIT 1
        """
    )
    await phases.prepare(db, "public")
    with pytest.raises(AdoptionRefused) as refused:
        await phases.cut_over(db, SETTINGS)
    assert refused.value.details == ["requests: they have no batch (1 unfinished)"]
    old.run("UPDATE requests SET state = 'canceled', canceled_at = now() WHERE batch_id IS NULL")
    done = await phases.cut_over(db, SETTINGS)
    assert [(one.batch_id, one.reason) for one in done.left_out] == [
        (deleted, "it was deleted"),
        (None, "they have no batch"),
    ]
    assert await batches.get(db, deleted) is None
    assert (await read(db, kept)).total == 2


async def test_output_files_are_written_anew_under_their_old_ids(db: Session, old: OldDatabase) -> None:
    output = uuid4()
    old.run("INSERT INTO files (id, name, purpose) VALUES (%s, 'out.jsonl', 'batch_output')", output)
    batch = old.batch(old.file(2), output_file_id=output)
    old.end(batch, (1, 2), "completed")
    await phases.prepare(db, "public")
    await phases.cut_over(db, SETTINGS)
    assert (await read(db, batch)).planned_output_id == output
    assert await sql(db, "SELECT count(*) FROM batchline.files") == [(1,)]


async def test_a_changed_template_is_copied_again(db: Session, old: OldDatabase) -> None:
    old.batch(old.file(2))
    await phases.prepare(db, "public")
    old.run("UPDATE request_templates SET body = '{}', updated_at = now() WHERE custom_id = 'line-1'")
    await phases.cut_over(db, SETTINGS)
    assert await sql(db, "SELECT body FROM batchline.lines WHERE line_no = 1") == [("{}",)]
    assert (await verification.verify(db)).findings == []

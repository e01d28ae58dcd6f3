"""A batch over a few lines, with its file: all or nothing, in one round trip."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from batchline.model import RunSettings
from batchline.model.ids import new_id
from batchline.store import batches, small_batches
from batchline.store.batches import AlreadyExists, NewBatch
from batchline.store.files import FileLane, NewFile
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.rows import counted_rows

URL = "python:double"


def a_file(file_id: UUID) -> NewFile:
    return NewFile(file_id, "default", "batch", "double", 2, b"", [FileLane("double", URL, 2)])


def a_new_batch(**fields: object) -> NewBatch:
    new = NewBatch(new_id(), "default", new_id(), "none", None, RunSettings(stages=(URL,)), endpoint=URL)
    return replace(new, **fields)


async def create(db: Session, new: NewBatch) -> None:
    await small_batches.create(db, a_file(new.file_id), new, [b"0", b"1"], [b"7", b"8"])


async def test_the_lines_are_in_the_order_of_the_items(db: Session) -> None:
    new = a_new_batch()
    await create(db, new)
    lines = "SELECT lane_no, ordinal, line_no, custom_id, body FROM batchline.lines ORDER BY ordinal"
    assert await sql(db, lines) == [(0, 0, 1, "0", "7"), (0, 1, 2, "1", "8")]
    found = await batches.get(db, new.id)
    assert found is not None
    assert (found.total, found.endpoint) == (2, URL)


async def test_a_batch_that_cannot_be_created_leaves_no_file_and_no_lines(db: Session) -> None:
    first = a_new_batch(resume_key="k")
    await create(db, first)
    before = await counted_rows(db)
    with pytest.raises(AlreadyExists):
        await create(db, a_new_batch(resume_key="k"))
    assert await counted_rows(db) == before
    # The connection can be used again.
    await create(db, a_new_batch())


async def test_a_file_that_cannot_be_added_leaves_no_batch(db: Session) -> None:
    first = a_new_batch()
    await create(db, first)
    before = await counted_rows(db)
    with pytest.raises(AlreadyExists):
        await create(db, a_new_batch(file_id=first.file_id))
    assert await counted_rows(db) == before

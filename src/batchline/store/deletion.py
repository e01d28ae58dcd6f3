"""Delete batches, and what is left of batches that are gone."""

from uuid import UUID

from batchline.store.retention import CHUNK, DeletedFile
from batchline.store.session import Session, run
from batchline.store.statements import statement


async def delete(session: Session, batch_id: UUID, *, force: bool) -> list[DeletedFile] | None:
    """Delete a batch; return its files, which are marked as deleted.

    None if it is governed, or has not ended and `force` is false. Its input is among the files if a command
    ingested it and no other batch uses it.
    """
    async with session.transaction() as connection:
        rows = await run(connection, statement("delete_batch"), {"batch": batch_id, "force": force})
        if not rows:
            return None
        file_id, _, made = rows[0]
        input_file = {"file": file_id}
        unused = []
        if await run(connection, statement("lock_unused_input"), input_file):
            unused = await run(connection, statement("delete_unused_input"), input_file)
    return [DeletedFile(UUID(id), no, key) for id, no, key in made] + [DeletedFile(*row) for row in unused]


async def drop_deleted_lanes(session: Session, batch_id: UUID | None = None) -> int | None:
    """Delete a chunk of what is left of deleted batches, or of one. Return None when nothing is left."""
    params = {"batch": batch_id, "chunk": CHUNK}
    rows = await session.rows(statement("drop_deleted_lanes"), params)
    return int(rows[0][0]) if rows else None

"""Delete batches, and what is left of batches that are gone."""

from uuid import UUID

import msgspec

from batchline.store.retention import CHUNK, DeletedFile
from batchline.store.session import Session, run
from batchline.store.statements import statement


class DeletedBatch(msgspec.Struct, frozen=True):
    """What was deleted with a batch at once: its spans; and its files, which are marked as deleted."""

    spans: int
    files: list[DeletedFile]


async def delete(session: Session, batch_id: UUID, *, force: bool) -> DeletedBatch | None:
    """Delete a batch. Tasks that providers still run for it are noted, to be cancelled there.

    None if it is governed, or has not ended and `force` is false. Its input is among the files if a command
    ingested it and no other batch uses it.
    """
    async with session.transaction() as connection:
        if force:
            await run(connection, statement("lock_spans"), {"batch": batch_id})
        params = {"batch": batch_id, "force": force}
        locked = await run(connection, statement("lock_deletable"), params)
        if not locked:
            return None
        input_file = {"file": locked[0][0]}
        ingested = await run(connection, statement("lock_unused_input"), input_file)
        ((_, _, made, spans, _),) = await run(connection, statement("delete_batch"), params)
        unused = await run(connection, statement("delete_unused_input"), input_file) if ingested else []
    files = [DeletedFile(UUID(id), no, key) for id, no, key in made]
    return DeletedBatch(spans, files + [DeletedFile(*row) for row in unused])


async def drop_deleted_lanes(session: Session, batch_id: UUID | None = None) -> int | None:
    """Delete a chunk of what is left of deleted batches, or of one. Return None when nothing is left."""
    params = {"batch": batch_id, "chunk": CHUNK}
    rows = await session.rows(statement("drop_deleted_lanes"), params)
    return int(rows[0][0]) if rows else None

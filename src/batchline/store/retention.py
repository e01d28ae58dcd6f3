"""Delete data whose retention has ended. Each statement deletes one small chunk."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

# Rows to delete in one statement, which takes about ten milliseconds.
CHUNK = 5_000
_PAGE = 100


class DeletedFile(msgspec.Struct, frozen=True):
    id: UUID
    no: int
    object_key: str | None


async def delete_expired(session: Session) -> int:
    return await _count(session, "delete_expired_files", chunk=_PAGE)


async def deleted_files(session: Session, after: UUID | None) -> list[DeletedFile]:
    """List deleted files whose data may still exist and that no running batch needs, page by page."""
    rows = await session.rows(statement("deleted_files"), {"after": after, "limit": _PAGE})
    return [DeletedFile(*row) for row in rows]


async def drop_lines(session: Session, file: DeletedFile) -> int:
    return await _count(session, "drop_file_lines", no=file.no, chunk=CHUNK)


async def file_purged(session: Session, file: DeletedFile) -> None:
    await session.rows(statement("file_purged"), {"file": file.id})


async def purge_old_batches(session: Session, older_than: timedelta) -> int:
    return await _count(session, "purge_old_batches", older_than=older_than, chunk=_PAGE)


async def purge_old_operations(session: Session, older_than: timedelta) -> int:
    return await _count(session, "purge_old_operations", older_than=older_than, chunk=_PAGE)


async def purge_batches_of(session: Session, deleted: Sequence[DeletedFile]) -> None:
    await session.rows(statement("purge_batches_of"), {"files": [file.id for file in deleted]})


async def purging_batches(session: Session, after: UUID | None) -> list[UUID]:
    rows = await session.rows(statement("purging_batches"), {"after": after, "limit": _PAGE})
    return [batch_id for (batch_id,) in rows]


async def drop_results(session: Session, batch_id: UUID) -> int:
    return await _count(session, "drop_results", batch=batch_id, chunk=CHUNK)


async def drop_attempts(session: Session, batch_id: UUID) -> int:
    return await _count(session, "drop_attempts", batch=batch_id, chunk=CHUNK)


async def batch_purged(session: Session, batch_id: UUID) -> None:
    await session.rows(statement("batch_purged"), {"batch": batch_id})


async def drop_idempotency_keys(session: Session, older_than: timedelta) -> int:
    return await _count(session, "drop_idempotency_keys", older_than=older_than, chunk=CHUNK)


async def drop_old_events(session: Session, seconds: float) -> int:
    return await _count(session, "drop_old_events", seconds=seconds, chunk=CHUNK)


async def _count(session: Session, name: str, **params: object) -> int:
    ((gone,),) = await session.rows(statement(name), params)
    return int(gone)

"""How much room the database and the object store take."""

from datetime import datetime
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement


class BatchSize(msgspec.Struct, frozen=True):
    """The bytes of a batch's files."""

    id: UUID
    filename: str | None
    lines: int
    input_bytes: int
    output_bytes: int
    ended_at: datetime | None


async def table_sizes(session: Session) -> dict[str, int]:
    """Bytes by table, with its indexes, the largest first."""
    rows = await session.rows(statement("table_sizes"), {})
    return {name: int(size) for name, size in rows}


async def stored(session: Session) -> tuple[int, int]:
    """Files in the object store, and their bytes."""
    ((count, size),) = await session.rows(statement("stored_bytes"), {})
    return count, size


async def largest_batches(session: Session, limit: int) -> list[BatchSize]:
    return [BatchSize(*row) for row in await session.rows(statement("batch_sizes"), {"limit": limit})]

"""Batches that accept items while they run, or before they do."""

from collections.abc import Sequence
from uuid import UUID

from batchline.store.arrays import TextArray
from batchline.store.session import Session
from batchline.store.statements import statement


async def append(
    session: Session, batch_id: UUID, url: str, items: Sequence[tuple[bytes, bytes]]
) -> int | None:
    """Add items, as custom_id and body, to one lane. Returns the ordinal of the first, or None if the batch
    accepts no items any more."""
    bodies = [body for _, body in items]
    params = {
        "batch": batch_id,
        "url": url,
        "custom_ids": TextArray([custom_id for custom_id, _ in items]),
        "bodies": TextArray(bodies),
        "bytes": sum(map(len, bodies)),
    }
    ((first,),) = await session.rows(statement("append_items"), params)
    return None if first is None else int(first)


async def release(session: Session, batch_id: UUID) -> bool:
    """Accept no more items, and run. False if it did not accept items."""
    ((released,),) = await session.rows(statement("release_items"), {"batch": batch_id})
    return bool(released)


async def lock_keys(session: Session, tenant: str, operation: str) -> None:
    """Let others that take keys of this operation wait until the session's transaction ends."""
    await session.rows(statement("lock_keys"), {"tenant": tenant, "operation": operation})


async def take_keys(
    session: Session, tenant: str, operation: str, file_no: int, keys: Sequence[bytes]
) -> set[bytes]:
    """Take keys of items that may be submitted once, in the session's transaction; those that were free."""
    params = {
        "tenant": tenant,
        "operation": operation,
        "file_no": file_no,
        "keys": TextArray(list(keys)),
    }
    return {key for (key,) in await session.raw_rows(statement("take_keys"), params)}

"""Reads background responses: the one line of a batch, and its result."""

from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement


class StoredResponse(msgspec.Struct, frozen=True):
    body: str
    outcome: str | None
    # The output line, once there is a result.
    output: str | None
    # A worker holds it, or a provider works on it.
    running: bool


async def get(session: Session, batch_id: UUID) -> StoredResponse | None:
    """None if the batch is not a response, or its result was deleted."""
    rows = await session.rows(statement("get_response"), {"batch": batch_id})
    return StoredResponse(*rows[0]) if rows else None

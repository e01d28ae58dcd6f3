"""Counts what asynchronous providers work on."""

from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement


class ProviderCounts(msgspec.Struct, frozen=True):
    """Items of one upstream. `submission_unknown`: the provider may have accepted them without an answer."""

    upstream: str
    processing: int
    submission_unknown: int


async def counts(session: Session, batch_id: UUID | None = None) -> list[ProviderCounts]:
    """By upstream, of one batch or of all. Upstreams with neither are left out."""
    rows = await session.rows(statement("provider_counts"), {"batch": batch_id})
    return [ProviderCounts(upstream, tasks or 0, unknown or 0) for upstream, tasks, unknown in rows]

"""How people name batches: by the first digits of an id, by age, and by the names of their files."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

# Fewer digits would be unique today and ambiguous tomorrow: ids of the same minute share the first eight.
MIN_DIGITS = 8


class BatchOrigin(msgspec.Struct, frozen=True):
    """Where a batch comes from. `held`: a live worker holds items of it."""

    filename: str | None
    held: bool


async def matching(session: Session, digits: str, limit: int, *, tenant: str | None) -> list[UUID]:
    """The batches whose ids begin with these hexadecimal digits, of a tenant; None: of all."""
    lowest, highest = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    params = {"lowest": lowest, "highest": highest, "limit": limit, "tenant": tenant}
    return [batch_id for (batch_id,) in await session.rows(statement("match_batches"), params)]


async def nth_newest(session: Session, tenant: str, nth: int, *, governed: bool) -> UUID | None:
    """The newest batch is the first."""
    params = {"tenant": tenant, "newer": nth - 1, "governed": governed}
    rows = await session.rows(statement("nth_newest_batch"), params)
    return rows[0][0] if rows else None


async def short(session: Session, batch_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The first digits of each id that no other batch's id begins with."""
    rows = await session.rows(statement("neighbouring_batches"), {"batches": list(batch_ids)})
    return {batch_id: _unique(batch_id, neighbours) for batch_id, *neighbours in rows}


async def origins(session: Session, batch_ids: Sequence[UUID]) -> dict[UUID, BatchOrigin]:
    rows = await session.rows(statement("input_names"), {"batches": list(batch_ids)})
    return {batch_id: BatchOrigin(filename, held) for batch_id, filename, held in rows}


def _unique(batch_id: UUID, neighbours: Sequence[UUID | None]) -> str:
    alike = max((_alike(batch_id.hex, other.hex) for other in neighbours if other is not None), default=0)
    return batch_id.hex[: max(MIN_DIGITS, alike + 1)]


def _alike(one: str, other: str) -> int:
    return next((nth for nth in range(32) if one[nth] != other[nth]), 31)

"""Why items of a batch failed, and how many may before the batch is paused."""

from uuid import UUID

import msgspec

from batchline.model import Batch, CauseCount
from batchline.model.failure import OTHER
from batchline.store.session import Session
from batchline.store.statements import statement

# Items that wait for another try are counted by cause up to this number; for more, the counts are estimates.
_SAMPLE = 1000


class _Listed(msgspec.Struct, frozen=True):
    """A row of list_causes."""

    all_failed: int
    sampled: int
    key: str | None
    code: str | None
    message: str | None
    count: int | None
    retrying: int
    example: str | None


async def causes(session: Session, batch: Batch) -> list[CauseCount]:
    """Causes of failures, and of attempts that are followed by another, the most frequent first. The last one
    may be `OTHER`: a batch lists a limited number of causes."""
    counts = batch.counts
    if not counts.failed and not counts.retrying:
        return []
    params = {"batch": batch.id, "sample": _SAMPLE if counts.retrying else 0}
    rows = [_Listed(**row) for row in await session.records(statement("list_causes"), params)]
    found = [counted for row in rows if (counted := _counted(row, counts.retrying)) is not None]
    found.sort(key=lambda each: (-each.count, -each.retrying, each.key))
    unlisted = max((row.all_failed for row in rows), default=0) - sum(each.count for each in found)
    if unlisted > 0:
        found.append(CauseCount(OTHER.key, OTHER.code, OTHER.message, unlisted, 0, None))
    return found


async def threshold(session: Session, batch_id: UUID) -> int | None:
    """The limit that a batch has reached which is paused because of its failures."""
    rows = await session.rows(statement("failure_threshold"), {"batch": batch_id})
    return rows[0][0] if rows else None


def _counted(row: _Listed, waiting: int) -> CauseCount | None:
    """None: nothing fails for this cause any more."""
    retrying = row.retrying
    if row.sampled >= _SAMPLE:
        retrying = round(retrying * max(waiting, row.sampled) / row.sampled)
    if row.key is None or not (row.count or retrying):
        return None
    return CauseCount(row.key, row.code or "", row.message or "", row.count or 0, retrying, row.example)

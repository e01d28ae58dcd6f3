"""The stages of a batch of a Python operation, and whether a Python worker is connected."""

from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

# The name of the poll session of a Python app's worker, by which others find it.
PYTHON_WORKER = "python"


class StageCounts(msgspec.Struct, frozen=True):
    """Items of one lane by state. `held` have not ended, and were claimed at least once; of these, `retrying`
    wait for another attempt, and `returned` can be claimed again now."""

    url: str
    total: int
    next: int
    held: int
    retrying: int
    returned: int
    failed: int
    completed: int


async def counts(session: Session, batch_id: UUID, *, ended: bool) -> list[StageCounts]:
    """`ended`: the batch was cancelled or has expired, and nothing of it runs any more."""
    rows = await session.rows(statement("stage_counts"), {"batch": batch_id, "ended": ended})
    return [StageCounts(*row) for row in rows]


async def worker_connected(session: Session) -> bool:
    params = {"name": f"batchline {PYTHON_WORKER}"}
    ((connected,),) = await session.rows(statement("python_workers"), params)
    return bool(connected)

"""Batches that run in steps: begin the next one, and find those that are due."""

from uuid import UUID

from batchline.store.session import Session, StoreConnection, run
from batchline.store.statements import statement


async def hold_back(connection: StoreConnection, batch_id: UUID) -> None:
    """Let a batch that this transaction has created run in steps, and begin the first if it may run."""
    await run(connection, statement("hold_back"), {"batch": batch_id})
    await run(connection, statement("begin_step"), {"batch": batch_id})


async def begin(session: Session, batch_id: UUID) -> int:
    """Begin the next step of a batch, if it is time for that. Return the number of its lines."""
    ((lines,),) = await session.rows(statement("begin_step"), {"batch": batch_id})
    return int(lines)


async def due(session: Session, limit: int = 100) -> list[UUID]:
    """Batches whose next step should begin, the longest waiting first."""
    return [batch_id for (batch_id,) in await session.rows(statement("due_steps"), {"limit": limit})]

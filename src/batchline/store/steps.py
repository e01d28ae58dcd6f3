"""Batches that run in steps: begin the next one, and find those that are due.

The duplicates of a batch are its last step: they get the answers of others instead of being sent.
"""

from uuid import UUID

from batchline.store.session import Session, StoreConnection, run
from batchline.store.statements import statement


async def hold_back(connection: StoreConnection, batch_id: UUID) -> None:
    """Let a batch that this transaction has created run in steps, and begin the first if it may run."""
    await run(connection, statement("hold_back"), {"batch": batch_id})
    await run(connection, statement("begin_step"), {"batch": batch_id})


async def arrange(connection: StoreConnection, batch_id: UUID) -> None:
    """Hold the duplicates of a batch back that this transaction has created, and put its lines in order."""
    await run(connection, statement("arrange_lines"), {"batch": batch_id})


async def begin(session: Session, batch_id: UUID) -> int:
    """Begin the next step of a batch, if it is time for that, or answer its duplicates, in short
    transactions. Return the number of lines. Duplicates of a large batch take minutes: for maintenance."""
    total = 0
    while lines := await begin_part(session, batch_id):
        total += lines
    return total


async def begin_part(session: Session, batch_id: UUID) -> int:
    """Begin the next step, or answer some of the duplicates. The others stay due, and maintenance answers
    them: a poll finds them. Return the number of lines."""
    ((lines,),) = await session.rows(statement("begin_step"), {"batch": batch_id})
    if not lines:
        await _conclude(session, batch_id)
    return int(lines)


async def answer_early(session: Session, batch_id: UUID) -> int:
    """Give duplicates the answers that are there, while others still run. Return their number."""
    total, after = 0, 0
    while rows := await session.rows(statement("answer_early"), {"batch": batch_id, "after": after}):
        ((answered, span_id),) = rows
        total += answered
        if not answered:
            # Of the same span again, otherwise: it may have more than one call copies.
            after = span_id
    await _conclude(session, batch_id)
    return total


async def _conclude(session: Session, batch_id: UUID) -> None:
    """Freeze the batch if it was closed meanwhile: its closing may have met a locked span."""
    await session.rows(statement("conclude"), {"batch": batch_id})


async def due(session: Session, limit: int = 100) -> list[UUID]:
    """Batches whose next step should begin, the longest waiting first."""
    return [batch_id for (batch_id,) in await session.rows(statement("due_steps"), {"limit": limit})]

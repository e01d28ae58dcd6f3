"""Maintenance tasks that any worker may run, and the outbox."""

from datetime import datetime
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

_CHUNK = 5_000


class OutboxEvent(msgspec.Struct, frozen=True):
    """A change of a batch's state that webhooks may report."""

    id: UUID
    batch_id: UUID
    type: str
    created_at: datetime


async def take_task(session: Session) -> str | None:
    rows = await session.rows(statement("take_task"), {})
    return rows[0][0] if rows else None


async def repeat_task(session: Session, name: str, seconds: float = 0.0) -> None:
    """Make an unfinished maintenance task due again, at once or after `seconds`."""
    await session.rows(statement("repeat_task"), {"name": name, "seconds": seconds})


async def overdue(session: Session) -> list[UUID]:
    return [batch_id for (batch_id,) in await session.rows(statement("overdue"), {})]


async def unconcluded(session: Session) -> list[UUID]:
    return [batch_id for (batch_id,) in await session.rows(statement("unconcluded"), {})]


async def unfrozen(session: Session) -> list[UUID]:
    """Batches whose lines all have an outcome, but whose finalizing has not begun."""
    return [batch_id for (batch_id,) in await session.rows(statement("unfrozen"), {"limit": 100})]


async def freeze_finished(session: Session, batch_id: UUID) -> bool:
    """Begin to finalize a batch whose lines all have an outcome."""
    ((frozen,),) = await session.rows(statement("freeze_finished"), {"batch": batch_id})
    return bool(frozen)


async def forget_workers(session: Session) -> None:
    await session.rows(statement("forget_workers"), {})


async def drop_orphan_lines(session: Session) -> int:
    """Delete one chunk of the lines of a file whose row is gone. Return 0 when none is left, or when other
    workers delete the rest."""
    for (no,) in await session.rows(statement("orphan_file"), {}):
        ((gone,),) = await session.rows(statement("drop_file_lines"), {"no": no, "chunk": _CHUNK})
        return int(gone)
    return 0


async def take_event(session: Session) -> OutboxEvent | None:
    rows = await session.rows(statement("take_event"), {})
    return OutboxEvent(*rows[0]) if rows else None


async def event_delivered(session: Session, event_id: UUID) -> None:
    await session.rows(statement("event_delivered"), {"event": event_id})

"""Actions on many batches: created once, and done batch by batch by any worker.

A worker takes an action for a while. The act on a batch, and the progress after it, are one transaction under
the lock on the action's row: each batch is done once, also if the worker is killed or another one takes over.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from batchline.model.bulk_action import BatchFilter, BulkAction, BulkPreview, NewBulkAction, filter_values
from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.session import Session, StoreConnection, run, run_records
from batchline.store.statements import statement

# A worker that does nothing for so long has lost the action. While it acts, its lock keeps others away.
LEASE = timedelta(seconds=15)
_MAX_COUNTED = 100_000
_MAX_FAILED = 100
_SAMPLE = 5
_LATEST = {"position_at": "infinity", "position_id": UUID(int=2**128 - 1)}
_FIELDS = frozenset(BulkAction.__struct_fields__)


class TakenAction(msgspec.Struct, frozen=True):
    """An action that this worker has taken. `permitted`: its user may still do it."""

    action: BulkAction
    permitted: bool


async def preview(session: Session, tenant: str, viewer: str | None, wanted: BatchFilter) -> BulkPreview:
    params = {
        **_filter(tenant, viewer, wanted),
        **_LATEST,
        "max_batches": _MAX_COUNTED + 1,
        "sample": _SAMPLE,
    }
    ((matching, sample, not_started, in_flight),) = await session.rows(statement("preview_action"), params)
    exact = matching <= _MAX_COUNTED
    return BulkPreview(min(matching, _MAX_COUNTED), exact, tuple(sample), not_started, in_flight)


async def matching(
    session: Session, action: BulkAction, viewer: str | None, limit: int
) -> list[tuple[UUID, datetime]]:
    """The next batches of an action, and when each was created."""
    params = {
        **_filter(action.tenant, viewer, action.filter),
        "position_at": action.position_at,
        "position_id": action.position_id,
        "max_batches": limit,
    }
    return [(batch_id, at) for batch_id, at in await session.rows(statement("matching_batches"), params)]


async def create(
    session: Session, new: NewBulkAction, max_running: int, event: AuditEvent
) -> BulkAction | None:
    """None if the tenant has so many that have not ended."""
    params = {
        "id": new.id,
        "tenant": new.tenant,
        "actor": new.actor,
        "role": new.role.value,
        "alone": new.alone,
        "action": new.action.value,
        "value": new.value,
        "filter": Jsonb(filter_values(new.filter)),
        "matching": new.matching,
        "max_running": max_running,
    }
    async with session.transaction() as connection:
        made = await run_records(connection, statement("create_action"), params)
        if not made:
            return None
        await audit.add(connection, event)
        return _action(made[0])


async def get(session: Session, tenant: str, action_id: UUID) -> BulkAction | None:
    rows = await session.records(statement("get_action"), {"id": action_id, "tenant": tenant})
    return _action(rows[0]) if rows else None


async def page(
    session: Session, tenant: str, *, limit: int, actor: str | None = None, after: UUID | None = None
) -> list[BulkAction]:
    params = {"tenant": tenant, "actor": actor, "after": after, "limit": limit}
    return [_action(row) for row in await session.records(statement("list_actions"), params)]


async def cancel(session: Session, action_id: UUID, event: AuditEvent) -> bool:
    """False if it has ended."""
    async with session.transaction() as connection:
        params = {"id": action_id, "actor": event.actor}
        if not await run(connection, statement("cancel_action"), params):
            return False
        await audit.add(connection, event)
        return True


async def take(session: Session) -> TakenAction | None:
    rows = await session.records(statement("take_action"), {"lease": LEASE})
    return TakenAction(_action(rows[0]), rows[0]["permitted"]) if rows else None


class Step:
    """The act on one batch, in a transaction that holds the action."""

    def __init__(self, connection: StoreConnection, action: BulkAction) -> None:
        self.connection = connection
        self._action = action

    async def advance(self, batch_id: UUID, created_at: datetime, reason: str | None) -> None:
        """Count the batch as done, or as refused for this reason."""
        params = {
            "id": self._action.id,
            "batch": batch_id,
            "position_at": created_at,
            "reason": reason,
            "lease": LEASE,
            "max_failed": _MAX_FAILED,
        }
        await run(self.connection, statement("advance_action"), params)


@asynccontextmanager
async def step(session: Session, action: BulkAction, extra_time: float) -> AsyncIterator[Step | None]:
    """None if the action was cancelled, or another worker has taken it."""
    async with session.transaction(extra_time=extra_time) as connection:
        params = {"id": action.id, "turns": action.turns}
        yield Step(connection, action) if await run(connection, statement("hold_action"), params) else None


async def give_way(session: Session, action: BulkAction) -> None:
    await session.rows(statement("yield_action"), {"id": action.id, "turns": action.turns})


async def end(session: Session, action: BulkAction, error: str | None, event: AuditEvent) -> None:
    async with session.transaction() as connection:
        params = {"id": action.id, "turns": action.turns, "error": error}
        if await run(connection, statement("end_action"), params):
            await audit.add(connection, event)


async def forget(session: Session, older_than: timedelta) -> None:
    await session.rows(statement("forget_actions"), {"older_than": older_than})


def _filter(tenant: str, viewer: str | None, wanted: BatchFilter) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "viewer": viewer,
        "words": None if wanted.q is None else wanted.q.lower(),
        "statuses": _listed(wanted.status),
        "kind": wanted.kind,
        "model": wanted.model,
        "created_after": wanted.created_after,
        "created_before": wanted.created_before,
        "ids": _listed(wanted.ids),
    }


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _action(record: dict[str, Any]) -> BulkAction:
    return msgspec.convert({name: record[name] for name in _FIELDS}, BulkAction)

"""Who asks, and which governed batches he sees.

A user sees his own; approvers and admins see all of their tenant. To everybody else a batch is not there.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from batchline.governance.errors import NotAllowed, NotFound
from batchline.model import Approval, Child, GovernedBatch, Role
from batchline.store import operations
from batchline.store.audit import AuditEvent
from batchline.store.operations import Changing, OperationBatchNotFound
from batchline.store.session import Session


class Actor(msgspec.Struct, frozen=True):
    """Who asks: the name of a key within its tenant, and what it may do."""

    tenant: str
    user: str
    role: Role
    # He calls a server that asks for no keys: nobody else could approve what he submits.
    alone: bool = False

    def event(self, action: str, batch: GovernedBatch, **detail: Any) -> AuditEvent:
        """For the audit log: that he did this with a batch."""
        reported = {"operation": batch.operation, **detail}
        return AuditEvent(self.tenant, self.user, action, batch.id, subject=batch.user_id, detail=reported)


async def visible(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """A batch as the caller may see it: his own, or any of the tenant's for approvers and admins."""
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None or (actor.role is Role.USER and batch.user_id != actor.user):
        raise NotFound("No such batch.", param="batch_id")
    return batch


async def page(
    session: Session,
    actor: Actor,
    *,
    limit: int,
    operation: str | None = None,
    approval: Approval | None = None,
    after: UUID | None = None,
) -> list[GovernedBatch]:
    user = actor.user if actor.role is Role.USER else None
    return await operations.page(
        session, actor.tenant, limit=limit, user=user, operation=operation, approval=approval, after=after
    )


async def children(session: Session, batch: GovernedBatch, *, after: int, limit: int) -> list[Child]:
    return await operations.children(session, batch.id, after=after, limit=limit)


async def reload(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None:
        raise OperationBatchNotFound(f"no governed batch {batch_id}")
    return batch


@asynccontextmanager
async def changing(
    session: Session, actor: Actor, batch_id: UUID, *, pending_for: str | None = None
) -> AsyncIterator[Changing]:
    """To change the caller's own batch, or any of the tenant's for an admin, while nobody else does.

    With `pending_for`, a user of whom more may become pending, the limits' locks are held too.
    """
    batch = await visible(session, actor, batch_id)
    if batch.user_id != actor.user and actor.role is not Role.ADMIN:
        raise NotAllowed("Only its user and admins may do this with a batch.")
    async with operations.changing(session, actor.tenant, batch_id, pending_for=pending_for) as held:
        yield held

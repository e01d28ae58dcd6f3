"""The actor of a request, and which governed batches an actor may see and change.

Users see and change their own batches. Approvers see all batches of their tenant and decide on them. Admins
may do everything with batches in their tenant. A batch that the actor may not see is reported as not found.
An operation may restrict its submitters by role or by user. Refused submissions are in the audit log.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from batchline.governance.errors import NotAllowed, NotFound
from batchline.governance.operations import ROLE_PREFIX, Operation
from batchline.model import Approval, GovernedBatch, ParentStatus, Role
from batchline.store import audit, operations
from batchline.store.audit import AuditEvent
from batchline.store.operations import Changing, OperationBatchNotFound
from batchline.store.session import Session


class Actor(msgspec.Struct, frozen=True):
    """The user of a request: the name of an API key, its tenant and its role."""

    tenant: str
    user: str
    role: Role
    # The server runs without API keys, so there is no second user who could approve.
    alone: bool = False

    def event(self, action: str, batch: GovernedBatch, **detail: Any) -> AuditEvent:
        """The audit record of an act on a batch."""
        reported = {"operation": batch.operation, **detail}
        return AuditEvent(self.tenant, self.user, action, batch.id, subject=batch.user_id, detail=reported)


def may_submit(actor: Actor, operation: Operation) -> bool:
    """Whether the actor may submit the operation. Without API keys there are no users to tell apart."""
    if operation.submitters is None or actor.alone:
        return True
    # A user may be named `role:admin`, so an entry is either a role or a user. An operator is an admin, too.
    roles = {ROLE_PREFIX + actor.role} | ({ROLE_PREFIX + Role.ADMIN} if actor.role.administers else set())
    return any(
        each in roles if each.startswith(ROLE_PREFIX) else each == actor.user for each in operation.submitters
    )


async def check_submitter(
    session: Session,
    actor: Actor,
    operation: Operation,
    act: Literal["submit", "append", "retry"],
    batch: GovernedBatch | None = None,
) -> None:
    """Refuse an act for which the actor must be a submitter of the operation, and record the refusal."""
    if may_submit(actor, operation):
        return
    detail = {"operation": operation.name, "act": act, "role": actor.role.value}
    async with session.transaction() as connection:
        await audit.add(connection, _denied(actor, batch, detail))
    raise NotAllowed(
        f"You may not submit {operation.name}: its submitters include neither you nor your role,"
        f" {actor.role.value}. Ask an administrator.",
        param="operation",
    )


def _denied(actor: Actor, batch: GovernedBatch | None, detail: dict[str, str]) -> AuditEvent:
    if batch is None:
        return AuditEvent(actor.tenant, actor.user, "submission.denied", detail=detail)
    return actor.event("submission.denied", batch, **detail)


async def visible(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """A batch that the actor may see. Raises NotFound."""
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None or (actor.role is Role.USER and batch.user_id != actor.user):
        raise NotFound("Batch not found.", param="batch_id")
    return batch


async def displayed(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """A batch to be shown: if it waits for a decision, with the digest of what there is to decide on."""
    batch = await visible(session, actor, batch_id)
    if batch.approval is not Approval.PENDING or batch.finalizing_at is not None:
        return batch
    return replace(batch, decided_digest=await operations.digest(session, batch.id))


async def page(
    session: Session,
    actor: Actor,
    *,
    limit: int,
    operation: str | None = None,
    approval: Approval | None = None,
    status: ParentStatus | None = None,
    after: UUID | None = None,
) -> list[GovernedBatch]:
    """The batches that the actor may see, newest first."""
    user = actor.user if actor.role is Role.USER else None
    return await operations.page(
        session,
        actor.tenant,
        limit=limit,
        user=user,
        operation=operation,
        approval=approval,
        status=status,
        after=after,
    )


async def reload(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None:
        raise OperationBatchNotFound(f"no governed batch {batch_id}")
    return batch


@asynccontextmanager
async def changing(
    session: Session, actor: Actor, batch_id: UUID, *, pending_for: str | None = None
) -> AsyncIterator[Changing]:
    """Lock a batch that the actor may change, until the transaction ends. Raises NotFound and NotAllowed.

    With `pending_for`, a user who may get more pending work, the limit locks are held too.
    """
    batch = await visible(session, actor, batch_id)
    if batch.user_id != actor.user and not actor.role.administers:
        raise NotAllowed("Only the submitter of the batch and admins may do this.")
    async with operations.changing(session, actor.tenant, batch_id, pending_for=pending_for) as held:
        yield held

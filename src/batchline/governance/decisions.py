"""Approves and rejects governed batches. Of two concurrent decisions, one wins and the other gets a conflict.

An approval records the decision and opens the batch's lanes in one transaction. A rejection
ends all children. You cannot approve your own submission, unless the operation allows it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from batchline.governance.access import Actor, reload, visible
from batchline.governance.changes import is_closing, state
from batchline.governance.errors import Conflict, NotAllowed
from batchline.governance.rules import Rules
from batchline.governance.submissions import displayed_reason
from batchline.model import Approval, GovernedBatch, Role
from batchline.store import batches, operations
from batchline.store.operations import Changing
from batchline.store.session import Session


async def approve(
    rules: Rules,
    session: Session,
    actor: Actor,
    batch_id: UUID,
    reason: str | None = None,
    child_count: int | None = None,
) -> GovernedBatch:
    """Approve a batch and let it run.

    `child_count` is the number of children that the approver has reviewed, if given.
    """
    async with _deciding(session, actor, batch_id) as changing:
        await _check_four_eyes(rules, actor, changing)
        _check_seen(changing.batch, child_count)
        await changing.decide(Approval.APPROVED, actor.user, displayed_reason(reason))
        await changing.open()
        await changing.audit(actor.event("batch.approved", changing.batch, reason=displayed_reason(reason)))
    return await reload(session, actor, batch_id)


async def reject(session: Session, actor: Actor, batch_id: UUID, reason: str | None = None) -> GovernedBatch:
    """Reject a batch: none of its children runs."""
    async with _deciding(session, actor, batch_id) as changing:
        await changing.decide(Approval.REJECTED, actor.user, displayed_reason(reason))
        await changing.close("cancel", actor.user)
        await changing.audit(actor.event("batch.rejected", changing.batch, reason=displayed_reason(reason)))
    await batches.conclude(session, batch_id)
    return await reload(session, actor, batch_id)


async def _check_four_eyes(rules: Rules, actor: Actor, changing: Changing) -> None:
    """Refuse approvers who submitted the batch or appended children to it."""
    operation = rules.registry.find(changing.batch.operation)
    if actor.alone or (operation is not None and operation.self_approval):
        return
    if changing.batch.user_id == actor.user or await changing.appended_by(actor.user):
        raise NotAllowed("You cannot approve your own submission.")


def _check_seen(now: GovernedBatch, child_count: int | None) -> None:
    """A held batch may have grown since the approver reviewed it."""
    if child_count is not None and child_count != now.total:
        raise Conflict(
            f"The batch now has {now.total} children, not {child_count}. Review it again.",
            code="BATCH_CHANGED",
        )


@asynccontextmanager
async def _deciding(session: Session, actor: Actor, batch_id: UUID) -> AsyncIterator[Changing]:
    batch = await visible(session, actor, batch_id)
    if actor.role is Role.USER:
        raise NotAllowed("Only approvers and admins may approve or reject batches.")
    async with operations.changing(session, actor.tenant, batch.id) as changing:
        now = changing.batch
        if now.approval is not Approval.PENDING:
            why = f"was {now.approval.value} by {now.decided_by}" if now.decided_by else "needs no approval"
            raise Conflict(f"The batch {why}.", code="APPROVAL_NOT_PENDING")
        if is_closing(now):
            raise Conflict(f"The batch cannot be decided on: it {state(now)}.", code="APPROVAL_NOT_PENDING")
        yield changing

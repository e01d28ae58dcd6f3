"""Approving and rejecting what waits for it: of two who decide, one wins, and nobody decides alone.

An approval claims the batch and opens its lanes in one transaction; a rejection ends all its children.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from batchline.governance.access import Actor, reload, visible
from batchline.governance.changes import in_words, is_closing
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
    """Claim the parent and open its lanes, in one transaction: of two approvers one wins.

    `child_count` is how many children the approver has seen, if he says so.
    """
    async with _deciding(session, actor, batch_id) as changing:
        await _check_four_eyes(rules, actor, changing)
        _check_seen(changing.batch, child_count)
        await changing.decide(Approval.APPROVED, actor.user, displayed_reason(reason))
        await changing.open()
        await changing.audit(actor.event("batch.approved", changing.batch, reason=displayed_reason(reason)))
    return await reload(session, actor, batch_id)


async def reject(session: Session, actor: Actor, batch_id: UUID, reason: str | None = None) -> GovernedBatch:
    """None of the children will ever run."""
    async with _deciding(session, actor, batch_id) as changing:
        await changing.decide(Approval.REJECTED, actor.user, displayed_reason(reason))
        await changing.close("cancel", actor.user)
        await changing.audit(actor.event("batch.rejected", changing.batch, reason=displayed_reason(reason)))
    await batches.conclude(session, batch_id)
    return await reload(session, actor, batch_id)


async def _check_four_eyes(rules: Rules, actor: Actor, changing: Changing) -> None:
    """Nobody approves his own, neither what he submitted nor what he added to another one's batch."""
    operation = rules.registry.find(changing.batch.operation)
    if actor.alone or (operation is not None and operation.self_approval):
        return
    if changing.batch.user_id == actor.user or await changing.appended_by(actor.user):
        raise NotAllowed("Nobody approves what he submitted himself.")


def _check_seen(now: GovernedBatch, child_count: int | None) -> None:
    """A held batch may have grown since the approver looked at it."""
    if child_count is not None and child_count != now.total:
        raise Conflict(
            f"The batch has {now.total} children now, not {child_count}: look again.", code="BATCH_CHANGED"
        )


@asynccontextmanager
async def _deciding(session: Session, actor: Actor, batch_id: UUID) -> AsyncIterator[Changing]:
    batch = await visible(session, actor, batch_id)
    if actor.role is Role.USER:
        raise NotAllowed("Only approvers and admins decide.")
    async with operations.changing(session, actor.tenant, batch.id) as changing:
        now = changing.batch
        if now.approval is not Approval.PENDING:
            why = (
                f"it was {now.approval.value} by {now.decided_by}"
                if now.decided_by
                else "it needs no approval"
            )
            raise Conflict(f"There is nothing to decide: {why}.", code="APPROVAL_NOT_PENDING")
        if is_closing(now):
            raise Conflict(f"The batch is {in_words(now)}.", code="APPROVAL_NOT_PENDING")
        yield changing

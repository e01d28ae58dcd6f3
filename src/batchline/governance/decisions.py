"""Approves and rejects governed batches. Of two concurrent decisions, one wins and the other gets a conflict.

An approval records the decision and opens the batch's lanes in one transaction. A rejection
ends all children. You cannot approve your own submission, unless the operation allows it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from batchline.governance.access import Actor, reload, visible
from batchline.governance.changes import is_closing, state
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.governance.submissions import displayed_reason
from batchline.model import Approval, GovernedBatch, Role
from batchline.store import batches, operations, steps
from batchline.store.audit import AuditEvent
from batchline.store.operations import Changing
from batchline.store.session import Session


async def approve(
    rules: Rules,
    session: Session,
    actor: Actor,
    batch_id: UUID,
    reason: str | None = None,
    child_count: int | None = None,
    content_digest: str | None = None,
) -> GovernedBatch:
    """Approve a batch and let it run, or the rest of it after its sample.

    `content_digest` names what the approver has reviewed. `child_count`, the number of its children, is
    enough as long as there are no results: children are only added, and never changed.
    """
    async with _deciding(session, actor, batch_id) as changing:
        await _check_four_eyes(rules, actor, changing)
        digest = await changing.digest()
        _check_seen(changing.batch, digest, child_count, content_digest)
        await changing.decide(Approval.APPROVED, actor.user, displayed_reason(reason), digest)
        await changing.open()
        await changing.audit(_decided(actor, "batch.approved", changing.batch, reason, digest))
    await steps.begin_part(session, batch_id)
    return await reload(session, actor, batch_id)


async def reject(
    session: Session,
    actor: Actor,
    batch_id: UUID,
    reason: str | None = None,
    content_digest: str | None = None,
) -> GovernedBatch:
    """Reject a batch: none of its children runs any more. `content_digest`, what was reviewed, is optional:
    to reject more does no harm."""
    async with _deciding(session, actor, batch_id) as changing:
        digest = await changing.digest()
        _check_digest(digest, content_digest)
        await changing.decide(Approval.REJECTED, actor.user, displayed_reason(reason), digest)
        await changing.close("cancel", actor.user)
        await changing.audit(_decided(actor, "batch.rejected", changing.batch, reason, digest))
    await batches.conclude(session, batch_id)
    return await reload(session, actor, batch_id)


async def may_approve(registry: Registry, session: Session, actor: Actor, batch: GovernedBatch) -> bool:
    """Whether the actor may approve a batch that waits for a decision, as far as it can be told before."""
    if actor.role is Role.USER:
        return False
    if _alone_suffices(registry, actor, batch):
        return True
    return batch.user_id != actor.user and not await operations.appended_by(session, batch.id, actor.user)


def _alone_suffices(registry: Registry, actor: Actor, batch: GovernedBatch) -> bool:
    """Whether the submitter may approve."""
    operation = registry.find(batch.operation)
    return actor.alone or (operation is not None and operation.self_approval)


async def _check_four_eyes(rules: Rules, actor: Actor, changing: Changing) -> None:
    """Refuse approvers who submitted the batch or appended children to it."""
    if _alone_suffices(rules.registry, actor, changing.batch):
        return
    if changing.batch.user_id == actor.user or await changing.appended_by(actor.user):
        raise NotAllowed("You cannot approve your own submission.")


def _decided(actor: Actor, action: str, batch: GovernedBatch, reason: str | None, digest: str) -> AuditEvent:
    return actor.event(action, batch, reason=displayed_reason(reason), content_digest=digest)


def _check_seen(now: GovernedBatch, digest: str, child_count: int | None, content_digest: str | None) -> None:
    """A held batch may have grown since the approver reviewed it, and a sample has results."""
    if child_count is not None and child_count != now.total:
        raise Conflict(
            f"The batch now has {now.total} children, not {child_count}. Review it again.",
            code="BATCH_CHANGED",
        )
    _check_digest(digest, content_digest)
    counted = child_count is not None and now.completed + now.failed == 0
    if content_digest is None and now.may_have_changed and not counted:
        raise InvalidSubmission(
            "This batch may have changed since you reviewed it. Name the content_digest that you approve;"
            " it is part of the batch.",
            code="CONTENT_DIGEST_REQUIRED",
            param="content_digest",
        )


def _check_digest(digest: str, reviewed: str | None) -> None:
    if reviewed is not None and reviewed != digest:
        raise Conflict(
            "The batch is not what you reviewed: its content_digest has changed. Review it again.",
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

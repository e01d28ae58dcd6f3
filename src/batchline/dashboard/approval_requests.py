"""Governed batches that wait for a decision, with what an approver must know: who submitted what and why,
what will happen, and the digest that an approval names.

Items and results are shown without secrets, as the API for governed batches shows them.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from batchline.governance import access, children, decisions
from batchline.governance.access import Actor
from batchline.governance.children import ChildFailure
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.model import Approval, Child, ChildStatus, GovernedBatch, ids
from batchline.store import operations
from batchline.store.session import Session

MAX_REQUESTS = 20
_SAMPLE = 5
# A digest reads all children. For a list, it is computed for so many of them.
_MAX_DIGESTED = 20_000
# Larger items and results are cut.
_MAX_BYTES = 16 * 1024


class SampledChild(msgspec.Struct, frozen=True):
    custom_id: str
    status: str
    item: Any
    error: ChildFailure | None
    result: Any


class ApprovalRequest(msgspec.Struct, frozen=True):
    """`content_digest`: what there is to approve; null in a list of very large batches, not on the page of
    one batch."""

    id: str
    operation: str
    description: str
    tenant: str
    submitter: str
    reason: str | None
    created_at: datetime
    expires_at: datetime
    count: int
    completed: int
    failed: int
    # Children that have run as a sample, failed ones first; before, the first ones.
    sample: Sequence[SampledChild]
    consequence: str
    held: bool
    content_digest: str | None
    may_decide: bool


async def page(
    session: Session, actor: Actor, registry: Registry, *, limit: int, after: UUID | None
) -> tuple[list[ApprovalRequest], UUID | None]:
    """The newest first, and the last of them if there are more."""
    found = await access.page(session, actor, limit=limit + 1, approval=Approval.PENDING, after=after)
    requests, left = [], _MAX_DIGESTED
    for batch in found[:limit]:
        left -= batch.total
        requests.append(await _read(session, actor, registry, batch, digested=left >= 0))
    return requests, found[limit - 1].id if len(found) > limit else None


async def of_batch(
    session: Session, actor: Actor, registry: Registry, batch: GovernedBatch
) -> ApprovalRequest | None:
    """None: the batch does not wait for a decision."""
    closing = batch.finalizing_at or batch.cancelling_at or batch.expiring_at
    if batch.approval is not Approval.PENDING or closing is not None:
        return None
    return await _read(session, actor, registry, batch, digested=True)


async def _read(
    session: Session, actor: Actor, registry: Registry, batch: GovernedBatch, *, digested: bool
) -> ApprovalRequest:
    operation = registry.find(batch.operation)
    # Before what is shown: if anything is added meanwhile, the approval is refused, not given for more.
    digest = await operations.digest(session, batch.id) if digested else None
    batch = await operations.get(session, actor.tenant, batch.id) or batch
    sample = await asyncio.to_thread(_sampled, await _sample(session, batch), batch, operation)
    return ApprovalRequest(
        id=ids.show(ids.BATCH, batch.id),
        operation=batch.operation,
        description="" if operation is None else operation.description,
        tenant=batch.tenant,
        submitter=batch.user_id,
        reason=batch.reason,
        created_at=batch.created_at,
        expires_at=batch.expires_at,
        count=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        sample=sample,
        consequence=consequence(batch, operation),
        held=batch.held,
        content_digest=digest,
        may_decide=await decisions.may_approve(registry, session, actor, batch),
    )


async def _sample(session: Session, batch: GovernedBatch) -> list[Child]:
    if batch.completed + batch.failed == 0:
        return await operations.children(session, batch.id, limit=_SAMPLE)
    lost = await operations.children(session, batch.id, status=ChildStatus.FAILED, limit=_SAMPLE)
    good = await operations.children(session, batch.id, status=ChildStatus.SUCCEEDED, limit=_SAMPLE)
    return [*lost, *good][:_SAMPLE]


def _sampled(found: Sequence[Child], batch: GovernedBatch, operation: Operation | None) -> list[SampledChild]:
    reported = [(child, children.reported(child, batch, operation)) for child in found]
    return [
        SampledChild(child.custom_id, child.status.value, _cut(each.item), each.error, _cut(each.result))
        for child, each in reported
    ]


def _cut(value: Any) -> Any:
    encoded = msgspec.json.encode(value)
    if len(encoded) <= _MAX_BYTES:
        return value
    text = encoded[:_MAX_BYTES].decode("utf-8", "replace")
    return {"text": text, "cut": True, "bytes": len(encoded)}


def consequence(batch: GovernedBatch, operation: Operation | None) -> str:
    """What an approval leads to, in sentences."""
    done = batch.completed + batch.failed
    said = []
    if done:
        said.append(
            f"{done:,} of {batch.total:,} have run as a sample: {batch.completed:,} completed,"
            f" {batch.failed:,} failed."
        )
    said.append(_runs(batch.total - done, batch.operation, operation))
    if batch.held:
        said.append(
            "The batch is held: nothing runs before it is released, and an added item voids the approval."
        )
    elif batch.paused_at is not None:
        said.append("The batch is paused: nothing runs before it is resumed.")
    plan = batch.settings.steps
    if plan is not None and plan.text is not None:
        said.append(f"They run in steps: {plan.text}.")
    return " ".join(said)


def _runs(number: int, name: str, operation: Operation | None) -> str:
    runs = f"{number:,} {'item runs' if number == 1 else 'items run'}"
    request = None if operation is None else operation.request
    if request is None:
        return f"If you approve, {runs} as {name}."
    sent = f"{request.method} {request.path} to {request.upstream}"
    return f"If you approve, {runs} as {name}: each is sent as {sent}."

"""Requests and responses that the routes for governed operations share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.context import InContext
from batchline.api.staging import StagedRequest, StepsObject
from batchline.batches.batch_object import steps_object
from batchline.governance import access, children
from batchline.governance.access import Actor
from batchline.governance.errors import NotFound
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.model import Child, ChildStatus, GovernedBatch, ids
from batchline.store import operations

PREFIX = "/api/v1"
# Seconds after which a client should ask for the status again.
_RETRY_AFTER = 2

# Stops at the first error, because there may be very many.
CustomIds = Annotated[list[str], Field(fail_fast=True)]
Reason = Annotated[str, StringConstraints(max_length=2000)]


def read_id(displayed: str) -> UUID:
    batch_id = ids.read(ids.BATCH, displayed)
    if batch_id is None:
        raise NotFound("Batch not found.", param="batch_id")
    return batch_id


# Requests


class SubmitBatch(StagedRequest):
    """The body of every submission. `items` must match the schema of the operation."""

    model_config = ConfigDict(extra="forbid")

    request_id: Annotated[
        UUID | None,
        Field(description="Repeating a request with the same id and body returns the same batch."),
    ] = None
    reason: Reason | None = None
    hold: Annotated[
        bool, Field(description="Run nothing until the batch is released. More items can be appended.")
    ] = False
    items: list[Any]
    custom_ids: Annotated[
        CustomIds | None, Field(description="One name per item. By default, children are numbered.")
    ] = None


# Responses


class AcceptedBatch(BaseModel):
    batch_id: str
    status: str
    status_url: str
    retry_after_seconds: int


class ValidatedBatch(BaseModel):
    """The answer to `validate_only`: the submission would be accepted."""

    valid: Literal[True] = True
    child_count: int
    approval: Literal["not_required", "pending", "approved", "rejected"]
    # The batch that an earlier request with this request_id has created.
    batch_id: str | None


class ApprovalObject(BaseModel):
    state: Literal["not_required", "pending", "approved", "rejected"]
    decided_by: str | None
    decided_at: datetime | None
    reason: str | None
    # What was decided on; in the answer for one batch also what there is to decide on.
    content_digest: str | None


class ChildError(BaseModel):
    code: str
    message: str


class ChildObject(BaseModel):
    sequence_no: int
    custom_id: str
    status: ChildStatus
    attempt_count: int
    finished_at: datetime | None
    # When the last attempt that is over ended.
    last_attempt_at: datetime | None
    # Without secrets.
    item: Any
    error: ChildError | None
    result: Any


class GovernedBatchObject(BaseModel):
    batch_id: str
    batch_type: str
    status: str
    child_count: int
    success_count: int
    failed_count: int
    pending_count: int
    cancelled_count: int
    created_by: str
    created_at: datetime
    # The last change of the batch or of its counts.
    updated_at: datetime
    expires_at: datetime
    finished_at: datetime | None
    request_id: UUID | None
    reason: str | None
    approval: ApprovalObject
    held: bool
    paused: bool
    # The rule that has paused it; null: a user has.
    paused_by: str | None
    steps: StepsObject | None
    cancelling: bool
    retries: int
    # False when the retention time has ended: then only the counts and the audit log remain.
    children_kept: bool
    status_url: str


class GovernedBatchDetail(GovernedBatchObject):
    children: list[ChildObject]
    has_more: bool
    # The value of `after` for the next page; null if this is the last.
    next_after: int | None


class GovernedBatchList(BaseModel):
    data: list[GovernedBatchObject]
    has_more: bool
    # The value of `after` for the next page; null if this is the last.
    next_after: str | None


def status_url(batch: GovernedBatch, below: str = f"{PREFIX}/batches") -> str:
    return f"{below}/{ids.show(ids.BATCH, batch.id)}"


def submitted(batch: GovernedBatch, below: str = f"{PREFIX}/batches") -> AcceptedBatch:
    return AcceptedBatch(
        batch_id=ids.show(ids.BATCH, batch.id),
        status=batch.status.value,
        status_url=status_url(batch, below),
        retry_after_seconds=_RETRY_AFTER,
    )


def displayed(batch: GovernedBatch) -> GovernedBatchObject:
    counts = batch.counts
    return GovernedBatchObject(
        batch_id=ids.show(ids.BATCH, batch.id),
        batch_type=batch.operation,
        status=batch.status.value,
        child_count=batch.total,
        success_count=counts.succeeded,
        failed_count=counts.failed,
        pending_count=counts.pending,
        cancelled_count=counts.cancelled,
        created_by=batch.user_id,
        created_at=batch.created_at,
        updated_at=batch.updated_at,
        expires_at=batch.expires_at,
        finished_at=batch.finalizing_at,
        request_id=batch.request_id,
        reason=batch.reason,
        approval=ApprovalObject(
            state=batch.approval.value,
            decided_by=batch.decided_by,
            decided_at=batch.decided_at,
            reason=batch.decision_reason,
            content_digest=batch.decided_digest,
        ),
        held=batch.held,
        paused=batch.paused_at is not None,
        paused_by=batch.paused_by if batch.paused_at is not None else None,
        steps=_steps(batch),
        cancelling=batch.cancelling_at is not None,
        retries=batch.retries,
        children_kept=batch.purging_at is None,
        status_url=status_url(batch),
    )


def _steps(batch: GovernedBatch) -> StepsObject | None:
    found = steps_object(batch.settings.steps, batch.step, batch.step_total, batch.next_step_at)
    return None if found is None else StepsObject(**found)


@dataclass(frozen=True, slots=True)
class ChildPage:
    """Which children to show."""

    status: ChildStatus | None
    after: int
    limit: int


async def detailed(
    context: InContext, registry: Registry, actor: Actor, batch_id: UUID, page: ChildPage
) -> Response:
    """A GovernedBatchDetail: a batch with a page of its children."""
    async with context.sessions.one() as session:
        batch = await access.displayed(session, actor, batch_id)
        found = await operations.children(
            session, batch.id, status=page.status, after=page.after, limit=page.limit + 1
        )
    operation = registry.find(batch.operation)
    # In a thread, because items and results may be large.
    content = await asyncio.to_thread(
        _page, batch, operation, found[: page.limit], has_more=len(found) > page.limit
    )
    return Response(content, media_type="application/json")


def _page(
    batch: GovernedBatch, operation: Operation | None, found: Sequence[Child], *, has_more: bool
) -> bytes:
    page = [child_of(child, batch, operation) for child in found]
    detail = GovernedBatchDetail(
        **displayed(batch).model_dump(),
        children=page,
        has_more=has_more,
        next_after=page[-1].sequence_no if has_more else None,
    )
    return detail.model_dump_json().encode()


def child_of(child: Child, batch: GovernedBatch, operation: Operation | None) -> ChildObject:
    displayed = children.reported(child, batch, operation)
    return ChildObject(
        sequence_no=child.sequence_no,
        custom_id=child.custom_id,
        status=child.status,
        attempt_count=child.attempt_count,
        finished_at=child.finished_at,
        last_attempt_at=child.last_attempt_at,
        item=displayed.item,
        error=None
        if displayed.error is None
        else ChildError(code=displayed.error.code, message=displayed.error.message),
        result=displayed.result,
    )

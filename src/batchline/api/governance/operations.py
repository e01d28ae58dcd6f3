"""/api/v1/operations and /api/v1/batches: list operations; list, show, decide on and change batches."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from batchline.api.context import ApiContext, InContext
from batchline.api.governance.dependencies import CurrentActor, Deciding, InRules
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import (
    PREFIX,
    ChildPage,
    CustomIds,
    GovernedBatchDetail,
    GovernedBatchList,
    GovernedBatchObject,
    Reason,
    detailed,
    displayed,
    read_id,
)
from batchline.api.metrics import Counters, InCounters
from batchline.api.routing import AuthenticatedRoute
from batchline.governance import access, changes, decisions
from batchline.governance.access import Actor
from batchline.governance.errors import LimitReached, NotFound
from batchline.governance.rules import Rules
from batchline.model import Approval, ChildStatus, GovernedBatch, ParentStatus
from batchline.store.session import Session

router = APIRouter(prefix=PREFIX, tags=["operations"], route_class=AuthenticatedRoute)

BatchId = Annotated[str, Path(max_length=100)]
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="The last child of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=500)]
OfStatus = Annotated[ChildStatus | None, Query(description="Only children with this status.")]


# Requests


class Decision(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason | None = None
    content_digest: Annotated[
        str | None,
        Field(
            max_length=64,
            description="What was reviewed, as the batch shows it; 409 if it has changed."
            " Required for an approval if children could be added, and after a sample.",
        ),
    ] = None


class Approve(Decision):
    child_count: Annotated[
        int | None,
        Field(
            ge=1, le=2**31 - 1, description="Number of children that were reviewed; 409 if it has changed."
        ),
    ] = None


class AppendItems(BaseModel):
    model_config = ConfigDict(extra="forbid")

    items: list[Any]
    custom_ids: CustomIds | None = None


# Responses


class OperationObject(BaseModel):
    name: str
    description: str
    largest_batch: int
    max_attempts: int
    approval: str
    self_approval: bool
    # Whether the caller may submit it.
    may_submit: bool
    item_schema: dict[str, Any]


class OperationList(BaseModel):
    data: list[OperationObject]


@router.get("/operations", responses=governed_responses())
async def list_operations(actor: CurrentActor, rules: InRules) -> OperationList:
    """The registered operations, each with the schema of its items."""
    return OperationList(
        data=[
            OperationObject(
                name=each.name,
                description=each.description,
                largest_batch=each.largest_batch,
                max_attempts=each.max_attempts,
                approval=each.approval,
                self_approval=each.self_approval,
                may_submit=access.may_submit(actor, each),
                item_schema=dict(each.schema),
            )
            for each in rules.registry.all()
        ]
    )


# Reading


@router.get("/batches", responses=governed_responses(404))
async def list_batches(
    actor: CurrentActor,
    context: InContext,
    batch_type: Annotated[
        str | None, Query(max_length=100, description="Only batches of this operation.")
    ] = None,
    approval: Literal["not_required", "pending", "approved", "rejected"] | None = None,
    status: Annotated[ParentStatus | None, Query(description="Only batches with this status.")] = None,
    after: Annotated[
        str | None, Query(max_length=100, description="The last batch of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> GovernedBatchList:
    """Batches, newest first. Users see their own; approvers and admins see all of their tenant."""
    async with context.sessions.one() as session:
        last = None if after is None else await _listed(session, actor, after)
        page = await access.page(
            session,
            actor,
            limit=limit + 1,
            operation=batch_type,
            approval=None if approval is None else Approval(approval),
            status=status,
            after=None if last is None else last.id,
        )
    data = [displayed(batch) for batch in page[:limit]]
    has_more = len(page) > limit
    return GovernedBatchList(data=data, has_more=has_more, next_after=data[-1].batch_id if has_more else None)


async def _listed(session: Session, actor: Actor, after: str) -> GovernedBatch:
    """The batch after which a page begins."""
    try:
        return await access.visible(session, actor, read_id(after))
    except NotFound as refused:
        raise NotFound(refused.message, param="after") from None


@router.get("/batches/{batch_id}", response_model=GovernedBatchDetail, responses=governed_responses(404))
async def get_batch(
    batch_id: BatchId,
    actor: CurrentActor,
    context: InContext,
    rules: InRules,
    status: OfStatus = None,
    after: After = 0,
    limit: Limit = 50,
) -> Response:
    """A batch with its counts, its status and a page of its children."""
    page = ChildPage(status, after, limit)
    return await detailed(context, rules.registry, actor, read_id(batch_id), page)


# Changing

_CHANGED: dict[str, Any] = {"responses": governed_responses(404, 409)}


@router.post("/batches/{batch_id}/retry", status_code=202, **_CHANGED)
async def retry_batch(
    batch_id: BatchId,
    actor: CurrentActor,
    context: InContext,
    rules: InRules,
    counters: InCounters,
    response: Response,
) -> GovernedBatchObject:
    """Run failed children again if they have attempts left."""
    batch = await retried(batch_id, actor, context, rules, counters)
    response.headers["location"] = displayed(batch).status_url
    return displayed(batch)


async def retried(
    batch_id: str, actor: Actor, context: ApiContext, rules: Rules, counters: Counters
) -> GovernedBatch:
    try:
        async with context.sessions.one() as session:
            return await changes.retry(rules, session, actor, read_id(batch_id))
    except LimitReached as refused:
        counters.limited(refused)
        raise


@router.post("/batches/{batch_id}/cancel", **_CHANGED)
async def cancel_batch(batch_id: BatchId, actor: Deciding, context: InContext) -> GovernedBatchObject:
    """Finish the children in flight and run no others. Repeating it changes nothing."""
    async with context.sessions.one() as session:
        return displayed(await changes.cancel(session, actor, read_id(batch_id)))


@router.post("/batches/{batch_id}/approve", **_CHANGED)
async def approve_batch(
    batch_id: BatchId,
    actor: Deciding,
    context: InContext,
    rules: InRules,
    requested: Approve | None = None,
) -> GovernedBatchObject:
    """For approvers and admins. You cannot approve your own submission, unless the operation allows it."""
    requested = requested or Approve()
    async with context.sessions.one() as session:
        approved = await decisions.approve(
            rules,
            session,
            actor,
            read_id(batch_id),
            requested.reason,
            requested.child_count,
            requested.content_digest,
        )
        return displayed(approved)


@router.post("/batches/{batch_id}/reject", **_CHANGED)
async def reject_batch(
    batch_id: BatchId,
    actor: Deciding,
    context: InContext,
    requested: Decision | None = None,
) -> GovernedBatchObject:
    """For approvers and admins. None of the children runs any more."""
    async with context.sessions.one() as session:
        requested = requested or Decision()
        rejected = await decisions.reject(
            session, actor, read_id(batch_id), requested.reason, requested.content_digest
        )
        return displayed(rejected)


@router.post("/batches/{batch_id}/pause", **_CHANGED)
async def pause_batch(batch_id: BatchId, actor: Deciding, context: InContext) -> GovernedBatchObject:
    async with context.sessions.one() as session:
        return displayed(await changes.pause(session, actor, read_id(batch_id)))


@router.post("/batches/{batch_id}/resume", **_CHANGED)
async def resume_batch(batch_id: BatchId, actor: Deciding, context: InContext) -> GovernedBatchObject:
    """End a pause. The batch runs unless it also waits for an approval or a release."""
    async with context.sessions.one() as session:
        return displayed(await changes.resume(session, actor, read_id(batch_id)))


@router.post("/batches/{batch_id}/append", **_CHANGED)
async def append_items(
    batch_id: BatchId,
    requested: AppendItems,
    actor: CurrentActor,
    context: InContext,
    rules: InRules,
    counters: InCounters,
) -> GovernedBatchObject:
    """Add children to a held batch."""
    try:
        async with context.sessions.one() as session:
            batch = await access.visible(session, actor, read_id(batch_id))
            await changes.permit_append(rules, session, actor, batch)
        # Without a session, because this may take long.
        prepared = await changes.prepare_append(rules, actor, batch, requested.items, requested.custom_ids)
        async with context.sessions.one() as session:
            return displayed(await changes.append(rules, session, actor, batch, prepared))
    except LimitReached as refused:
        counters.limited(refused)
        raise


@router.post("/batches/{batch_id}/release", **_CHANGED)
async def release_batch(batch_id: BatchId, actor: CurrentActor, context: InContext) -> GovernedBatchObject:
    """End the hold: the batch runs when it is approved or needs no approval. Repeating it changes nothing."""
    async with context.sessions.one() as session:
        return displayed(await changes.release(session, actor, read_id(batch_id)))

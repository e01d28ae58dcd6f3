"""/api/v1/dashboard/actions: one action on all batches that match a filter."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.context import InContext
from batchline.api.governance.dependencies import CurrentActor, Deciding
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.api.shares import WithinShare
from batchline.dashboard.figures import name_of
from batchline.governance import bulk_actions
from batchline.governance.access import Actor
from batchline.governance.errors import InvalidSubmission, NotFound
from batchline.model import Role, ids
from batchline.model.bulk_action import BatchFilter, BulkAction, BulkKind
from batchline.store import listing
from batchline.store.listing import BatchSummary, BatchViewer
from batchline.store.session import Session

router = APIRouter(
    prefix=f"{PREFIX}/dashboard/actions",
    tags=["dashboard"],
    route_class=AuthenticatedRoute,
    dependencies=[WithinShare],
)

Words = Annotated[str, StringConstraints(min_length=1, max_length=200)]


# Requests


class ActionFilter(BaseModel):
    """As in the list of batches. Each field that is given narrows the selection."""

    model_config = ConfigDict(extra="forbid")

    q: Words | None = None
    status: Annotated[list[str] | str | None, Field(description="A list, or words separated by commas.")] = (
        None
    )
    kind: Literal["batch", "operation"] | None = None
    model: Words | None = None
    tenant: Words | None = None
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ids: list[str] | None = None

    def filter(self, actor: Actor) -> BatchFilter:
        """Raises InvalidSubmission."""
        if self.tenant not in (None, actor.tenant):
            message = f"Invalid 'filter.tenant': an action is for batches of your tenant, {actor.tenant}."
            raise InvalidSubmission(message, code="INVALID_REQUEST", param="filter.tenant")
        status = self.status.split(",") if isinstance(self.status, str) else self.status
        return BatchFilter(
            q=self.q,
            status=None if not status else tuple(status),
            kind=self.kind,
            model=self.model,
            created_after=self.created_after,
            created_before=self.created_before,
            ids=None if self.ids is None else tuple(_batch_id(each) for each in self.ids),
        )


class StartAction(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: BulkKind
    # Required, so that a mistake does not concern all batches.
    filter: ActionFilter
    value: Annotated[int | None, Field(strict=True, description="The new priority.")] = None
    preview: Annotated[bool, Field(strict=True, description="Tell what would happen, and do nothing.")] = (
        False
    )


# Responses


class ActionRefusal(BaseModel):
    id: str
    reason: str


class ActionObject(BaseModel):
    """`matching` counts the batches when it was started. `failed` has the first hundred of those that were
    refused."""

    id: str
    action: BulkKind
    value: int | None
    filter: ActionFilter
    state: Literal["running", "completed", "cancelled", "failed"]
    matching: int
    done: int
    failed: list[ActionRefusal]
    failed_count: int
    error: str | None
    created_at: datetime
    created_by: str
    ended_at: datetime | None


class ActionTotal(BaseModel):
    count: int
    exact: bool


class ActionList(BaseModel):
    data: list[ActionObject]
    next: str | None
    previous: None = None
    # Of this page; exact if it is the only one.
    total: ActionTotal


class SampleBatch(BaseModel):
    id: str
    name: str
    status: str
    total: int


class ActionConsequence(BaseModel):
    """Lines of the matching batches that have not been sent yet, and that are in flight."""

    not_started: int
    in_flight: int


class ActionPreview(BaseModel):
    matching: int
    # False: there are more.
    exact: bool
    sample: list[SampleBatch]
    consequence: ActionConsequence


@router.post(
    "",
    status_code=202,
    responses={200: {"model": ActionPreview, "description": "What it would do"}, **governed_responses(409)},
)
async def start_action(
    requested: StartAction, actor: Deciding, context: InContext, response: Response
) -> ActionObject | ActionPreview:
    """Do the same with all batches that match. A worker does it, batch by batch; or preview it."""
    wanted = requested.filter.filter(actor)
    async with context.sessions.one() as session:
        if requested.preview:
            response.status_code = 200
            return await _preview(session, actor, wanted)
        made = await bulk_actions.start(session, actor, requested.action, wanted, requested.value)
    return displayed_action(made)


@router.get("", responses=governed_responses())
async def list_actions(
    actor: CurrentActor,
    context: InContext,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> ActionList:
    """Actions, newest first: your own, or those of the tenant for approvers and admins."""
    after = None if cursor is None else ids.read(ids.ACTION, cursor)
    if cursor is not None and after is None:
        raise InvalidSubmission("Invalid 'cursor'.", code="INVALID_REQUEST", param="cursor")
    async with context.sessions.one() as session:
        found = await bulk_actions.page(session, actor, limit=limit + 1, after=after)
    data = [displayed_action(each) for each in found[:limit]]
    following = data[-1].id if len(found) > limit else None
    total = ActionTotal(count=len(data), exact=cursor is None and following is None)
    return ActionList(data=data, next=following, total=total)


@router.get("/{action_id}", responses=governed_responses(404))
async def get_action(action_id: str, actor: CurrentActor, context: InContext) -> ActionObject:
    """How far an action is."""
    async with context.sessions.one() as session:
        return displayed_action(await bulk_actions.find(session, actor, _action_id(action_id)))


@router.post("/{action_id}/cancel", responses=governed_responses(404, 409))
async def cancel_action(action_id: str, actor: Deciding, context: InContext) -> ActionObject:
    """Leave the rest of the batches as they are. Repeating it changes nothing."""
    async with context.sessions.one() as session:
        return displayed_action(await bulk_actions.cancel(session, actor, _action_id(action_id)))


def displayed_action(action: BulkAction) -> ActionObject:
    wanted = action.filter
    return ActionObject(
        id=ids.show(ids.ACTION, action.id),
        action=action.action,
        value=action.value,
        filter=ActionFilter(
            q=wanted.q,
            status=None if wanted.status is None else list(wanted.status),
            kind=wanted.kind,
            model=wanted.model,
            created_after=wanted.created_after,
            created_before=wanted.created_before,
            ids=None if wanted.ids is None else [ids.show(ids.BATCH, each) for each in wanted.ids],
        ),
        state=action.state,
        matching=action.matching,
        done=action.done,
        failed=[
            ActionRefusal(id=ids.show(ids.BATCH, batch_id), reason=reason)
            for batch_id, reason in action.failed
        ],
        failed_count=action.failed_count,
        error=action.error,
        created_at=action.created_at,
        created_by=action.actor,
        ended_at=action.ended_at,
    )


async def _preview(session: Session, actor: Actor, wanted: BatchFilter) -> ActionPreview:
    found = await bulk_actions.preview(session, actor, wanted)
    viewer = BatchViewer(actor.tenant, actor.user if actor.role is Role.USER else None)
    sample = [_sampled(each) for each in await listing.summaries(session, viewer, found.sample)]
    return ActionPreview(
        matching=found.matching,
        exact=found.exact,
        sample=sample,
        consequence=ActionConsequence(not_started=found.not_started, in_flight=found.in_flight),
    )


def _sampled(summary: BatchSummary) -> SampleBatch:
    batch = summary.batch
    return SampleBatch(
        id=ids.show(ids.BATCH, batch.id),
        name=name_of(summary),
        status=batch.status.value,
        total=batch.total,
    )


def _batch_id(text: str) -> UUID:
    batch_id = ids.read(ids.BATCH, text)
    if batch_id is None:
        message = f"Invalid 'filter.ids': {text[:64]!r} is not the id of a batch."
        raise InvalidSubmission(message, code="INVALID_REQUEST", param="filter.ids")
    return batch_id


def _action_id(text: str) -> UUID:
    action_id = ids.read(ids.ACTION, text)
    if action_id is None:
        raise NotFound("Action not found.", code="ACTION_NOT_FOUND", param="action_id")
    return action_id

"""/api/v1/dashboard/batches/{id}: what a user does with one batch, ordinary or governed."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from msgspec import UNSET
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from batchline.api.context import ApiContext, InContext
from batchline.api.governance.dependencies import Deciding, InRules
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX, read_id
from batchline.api.openai.batches import RetryBatch
from batchline.api.routing import AuthenticatedRoute
from batchline.governance import batch_acts
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.governance.rules import Rules
from batchline.model import MAX_CONCURRENCY, MAX_PRIORITY, MIN_PRIORITY, BatchChange, ids

router = APIRouter(prefix=f"{PREFIX}/dashboard/batches", tags=["dashboard"], route_class=AuthenticatedRoute)

Priority = Annotated[
    int,
    Field(
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        strict=True,
        description="Of the tenant's batches, those with a higher priority run first. Usually 0.",
    ),
]


# Requests


class ChangeBatch(BaseModel):
    """New values. What is not given stays as it is."""

    model_config = ConfigDict(extra="forbid")

    priority: Priority | None = None
    concurrency: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_CONCURRENCY,
            strict=True,
            description="Requests of the batch that one worker may have in flight at one upstream."
            " Null: no limit.",
        ),
    ] = None
    deadline: Annotated[AwareDatetime | None, Field(description="Null: none.")] = None

    def change(self) -> BatchChange:
        given = self.model_fields_set
        return BatchChange(
            priority=UNSET if self.priority is None else self.priority,
            concurrency=self.concurrency if "concurrency" in given else UNSET,
            deadline=self.deadline if "deadline" in given else UNSET,
        )


# Responses


class ChangedBatch(BaseModel):
    """A batch after an act."""

    id: str
    status: str
    priority: int
    concurrency: int | None
    deadline: datetime | None


@router.patch("/{batch_id}", responses=governed_responses(404, 409))
async def change_batch(
    batch_id: str, requested: ChangeBatch, actor: Deciding, context: InContext, rules: InRules
) -> ChangedBatch:
    """Change the priority, the concurrency or the deadline of a batch that has not ended."""
    act = BatchAct(ActKind.CHANGE, change=requested.change())
    return await _performed(rules, context, actor, batch_id, act)


@router.post("/{batch_id}/retry", responses=governed_responses(404, 409))
async def retry_lines(
    batch_id: str,
    actor: Deciding,
    context: InContext,
    rules: InRules,
    requested: RetryBatch | None = None,
) -> ChangedBatch:
    """Run lines of an ended batch again that are not completed; of a governed batch, all failed children."""
    act = BatchAct(ActKind.RETRY, (requested or RetryBatch()).selection())
    return await _performed(rules, context, actor, batch_id, act)


@router.post("/{batch_id}/{act}", responses=governed_responses(404, 409))
async def act_on_batch(
    batch_id: str,
    act: Literal["cancel", "pause", "resume", "delete"],
    actor: Deciding,
    context: InContext,
    rules: InRules,
) -> ChangedBatch:
    """Cancel, pause, resume or delete a batch."""
    return await _performed(rules, context, actor, batch_id, BatchAct(ActKind(act)))


async def _performed(
    rules: Rules, context: ApiContext, actor: Actor, displayed_id: str, act: BatchAct
) -> ChangedBatch:
    batch_id = read_id(displayed_id)
    async with context.sessions.one() as session:
        before = await batch_acts.find(session, actor, batch_id)
        await batch_acts.perform(rules, session, actor, batch_id, act)
        deleted = act.kind is ActKind.DELETE
        batch = before if deleted else await batch_acts.find(session, actor, batch_id)
    return ChangedBatch(
        id=ids.show(ids.BATCH, batch.id),
        status="deleted" if deleted else batch.status.value,
        priority=batch.priority,
        concurrency=batch.concurrency,
        deadline=batch.expires_at,
    )

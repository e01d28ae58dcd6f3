"""/api/v1/admin/rate-limits: exemptions, limits of single users and current levels. For admins."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.context import InContext
from batchline.api.governance.dependencies import Administering
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.governance import limit_changes, limits
from batchline.governance.limits import GlobalLevels, UserLevels
from batchline.store.limits import exemptions

router = APIRouter(prefix=f"{PREFIX}/admin/rate-limits", tags=["limits"], route_class=AuthenticatedRoute)

UserId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Why = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
_Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


# Requests


class Exempt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    user_id: UserId
    reason: Why
    expires_at: AwareDatetime


class SetLimits(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_pending_parents: _Count
    max_pending_children: _Count
    cooldown_seconds: Annotated[int, Field(ge=0, le=31_536_000, strict=True)]
    reason: Why


# Responses


class ExemptionObject(BaseModel):
    user_id: str
    reason: str
    expires_at: datetime
    exempted_by: str
    created_at: datetime
    active: bool


class ExemptionList(BaseModel):
    data: list[ExemptionObject]


class UserLimits(BaseModel):
    user_id: str
    max_pending_parents: int
    max_pending_children: int
    cooldown_seconds: int
    reason: str
    set_by: str
    set_at: datetime


class LimitStatus(BaseModel):
    overall: Annotated[GlobalLevels, Field(serialization_alias="global")]
    users: list[UserLevels]


@router.post("/exemptions", status_code=201, responses=governed_responses())
async def exempt_user(requested: Exempt, actor: Administering, context: InContext) -> ExemptionObject:
    """Lift the limits of one user until a moment. The global limits still apply. Replaces an earlier one."""
    async with context.sessions.one() as session:
        made = await limit_changes.exempt(
            session, actor, requested.user_id, reason=requested.reason, expires_at=requested.expires_at
        )
    return ExemptionObject.model_validate(made, from_attributes=True)


@router.get("/exemptions", responses=governed_responses())
async def list_exemptions(actor: Administering, context: InContext) -> ExemptionList:
    """All exemptions, also those that have ended (`active` is false)."""
    async with context.sessions.one() as session:
        found = await exemptions(session, actor.tenant)
    return ExemptionList(data=[ExemptionObject.model_validate(each, from_attributes=True) for each in found])


@router.delete("/exemptions/{user_id:path}", status_code=204, responses=governed_responses(404))
async def drop_exemption(
    user_id: Annotated[str, Path(max_length=200)], actor: Administering, context: InContext
) -> Response:
    """End an exemption now."""
    async with context.sessions.one() as session:
        await limit_changes.drop_exemption(session, actor, user_id)
    return Response(status_code=204)


@router.put("/users/{user_id:path}", responses=governed_responses(404))
async def set_limits(
    user_id: Annotated[str, Path(min_length=1, max_length=200)],
    requested: SetLimits,
    actor: Administering,
    context: InContext,
) -> UserLimits:
    """Give one user other limits than the defaults."""
    async with context.sessions.one() as session:
        made = await limit_changes.set_limits(
            session,
            actor,
            user_id,
            parents=requested.max_pending_parents,
            children=requested.max_pending_children,
            cooldown=requested.cooldown_seconds,
            reason=requested.reason,
        )
    return UserLimits.model_validate(made, from_attributes=True)


@router.get("/status", responses=governed_responses())
async def status(actor: Administering, context: InContext) -> LimitStatus:
    """Current use of the global limits, and of each user with pending work or other limits."""
    async with context.sessions.one() as session:
        overall, users = await limits.levels(session, actor.tenant, context.settings.limits)
    return LimitStatus(overall=overall, users=users)

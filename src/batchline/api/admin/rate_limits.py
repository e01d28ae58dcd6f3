"""/api/v1/admin/rate-limits: who may have more than others, for admins of the tenant."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.context import InContext
from batchline.api.errors import ApiError
from batchline.api.governance.dependencies import Administering
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.governance.access import Actor
from batchline.secrets.masking import masked_text
from batchline.store import limits
from batchline.store.audit import AuditEvent
from batchline.store.limits import Exemption, Measured, Override

router = APIRouter(prefix=f"{PREFIX}/admin/rate-limits", tags=["limits"], route_class=AuthenticatedRoute)

UserId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Why = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
_Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


# What is asked


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


# What is answered


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


class Level(BaseModel):
    current_value: int
    max_value: int


class GlobalStatus(BaseModel):
    pending_parents: Level
    reads_per_minute: Level
    writes_per_minute: Level


class UserStatus(BaseModel):
    user_id: str
    pending_parents: Level
    pending_children: Level
    cooldown_seconds: int
    cooldown_left: int
    exempt: bool
    has_own_limits: bool


class LimitStatus(BaseModel):
    overall: Annotated[GlobalStatus, Field(serialization_alias="global")]
    users: list[UserStatus]


@router.post("/exemptions", status_code=201, responses=governed_responses())
async def exempt_user(requested: Exempt, actor: Administering, context: InContext) -> ExemptionObject:
    """Lift the limits of one user until a moment; the global ones stay. Again: in place of the one before."""
    detail = {"expires_at": requested.expires_at.isoformat()}
    async with context.sessions.one() as session:
        made = await limits.exempt(
            session,
            actor.tenant,
            requested.user_id,
            reason=masked_text(requested.reason),
            expires_at=requested.expires_at,
            event=_event(actor, "limits.exempted", requested.user_id, requested.reason, **detail),
        )
    if made is None:
        raise ApiError(
            400, "Invalid 'expires_at': it is past already.", code="INVALID_REQUEST", param="expires_at"
        )
    return _exemption(made)


@router.get("/exemptions", responses=governed_responses())
async def list_exemptions(actor: Administering, context: InContext) -> ExemptionList:
    """One that is over counts for nothing, and is shown as not active."""
    async with context.sessions.one() as session:
        found = await limits.exemptions(session, actor.tenant)
    return ExemptionList(data=[_exemption(each) for each in found])


@router.delete("/exemptions/{user_id:path}", status_code=204, responses=governed_responses(404))
async def drop_exemption(
    user_id: Annotated[str, Path(max_length=200)], actor: Administering, context: InContext
) -> Response:
    async with context.sessions.one() as session:
        event = _event(actor, "limits.exemption_dropped", user_id, None)
        if not await limits.drop_exemption(session, actor.tenant, user_id, event):
            raise ApiError(404, "This user is not exempt.", code="EXEMPTION_NOT_FOUND", param="user_id")
    return Response(status_code=204)


@router.put("/users/{user_id:path}", responses=governed_responses(404))
async def set_limits(
    user_id: Annotated[str, Path(min_length=1, max_length=200)],
    requested: SetLimits,
    actor: Administering,
    context: InContext,
) -> UserLimits:
    """Limits of one user's own, in place of the defaults."""
    detail = requested.model_dump(exclude={"reason"})
    async with context.sessions.one() as session:
        made = await limits.set_override(
            session,
            actor.tenant,
            user_id,
            parents=requested.max_pending_parents,
            children=requested.max_pending_children,
            cooldown=requested.cooldown_seconds,
            reason=masked_text(requested.reason),
            event=_event(actor, "limits.set", user_id, requested.reason, **detail),
        )
    return _own(made)


@router.get("/status", responses=governed_responses())
async def status(actor: Administering, context: InContext) -> LimitStatus:
    """What is pending, of all and of each user of whom there is something to tell."""
    defaults = context.settings.limits
    async with context.sessions.one() as session:
        window = await limits.requests_now(session)
        mine = await limits.measure(session, actor.tenant, actor.user)
        users = [
            _user(user, await limits.measure(session, actor.tenant, user), context)
            for user in await limits.users(session, actor.tenant)
        ]
    overall = GlobalStatus(
        pending_parents=Level(current_value=mine.all_parents, max_value=defaults.max_pending_parents),
        reads_per_minute=Level(current_value=window.reads, max_value=defaults.requests_per_minute),
        writes_per_minute=Level(current_value=window.writes, max_value=defaults.requests_per_minute),
    )
    return LimitStatus(overall=overall, users=users)


def _user(user: str, now: Measured, context: InContext) -> UserStatus:
    defaults = context.settings.limits
    cooldown = defaults.cooldown_seconds if now.cooldown is None else now.cooldown
    left = 0 if now.since_last is None else max(0, round(cooldown - now.since_last))
    return UserStatus(
        user_id=user,
        pending_parents=Level(
            current_value=now.parents, max_value=now.max_parents or defaults.user_pending_parents
        ),
        pending_children=Level(
            current_value=now.children, max_value=now.max_children or defaults.user_pending_children
        ),
        cooldown_seconds=cooldown,
        cooldown_left=left,
        exempt=now.exempt,
        has_own_limits=now.max_parents is not None,
    )


def _event(actor: Actor, action: str, user: str, reason: str | None, **detail: object) -> AuditEvent:
    reported = {**detail, **({} if reason is None else {"reason": masked_text(reason)})}
    return AuditEvent(actor.tenant, actor.user, action, subject=user, detail=reported)


def _exemption(made: Exemption) -> ExemptionObject:
    return ExemptionObject(
        user_id=made.user_id,
        reason=made.reason,
        expires_at=made.expires_at,
        exempted_by=made.exempted_by,
        created_at=made.created_at,
        active=made.active,
    )


def _own(made: Override) -> UserLimits:
    return UserLimits(
        user_id=made.user_id,
        max_pending_parents=made.max_pending_parents,
        max_pending_children=made.max_pending_children,
        cooldown_seconds=made.cooldown_seconds,
        reason=made.reason,
        set_by=made.set_by,
        set_at=made.set_at,
    )

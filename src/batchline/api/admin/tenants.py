"""/api/v1/usage: what the own tenant has used. For operators: /api/v1/admin/usage and …/admin/tenants."""

from datetime import date, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from batchline.api.admin.rate_limits import Why
from batchline.api.context import InContext
from batchline.api.errors import ApiError
from batchline.api.governance.dependencies import CurrentActor, Deciding
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.governance import tenants
from batchline.governance.access import Actor
from batchline.governance.tenants import UsageReport
from batchline.model import TenantUsage
from batchline.model.spending import dollars
from batchline.store import tenants as store_tenants
from batchline.store.tenants import Tenant, UsageQuery

usage_router = APIRouter(prefix=PREFIX, tags=["tenants"], route_class=AuthenticatedRoute)
router = APIRouter(prefix=f"{PREFIX}/admin/tenants", tags=["tenants"], route_class=AuthenticatedRoute)

_MAX_ROWS = 10_000

TenantName = Annotated[str, Path(min_length=1, max_length=64)]


# Requests


class SetQuota(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_bytes: Annotated[int, Field(ge=0, le=2**60, strict=True)] | None
    reason: Why | None = None


class Erase(BaseModel):
    model_config = ConfigDict(extra="forbid")

    # The tenant's name again, so that nobody erases the wrong one.
    confirm: str
    reason: Why | None = None


# Responses


class TokenCounts(BaseModel):
    input: int
    cached: int
    output: int
    reasoning: int


class UsageObject(BaseModel):
    tenant: str
    # The first day of the period; null: batches that still run.
    period: date | None
    batches: int
    lines: int
    failed: int
    reused: int
    tokens: TokenCounts
    cost_usd: float
    bytes_added: int
    bytes_stored: int | None


class UsageList(BaseModel):
    since: date
    until: date
    by: str
    data: list[UsageObject]
    # What batches that have not ended have used so far. It is in `data` when they have.
    running: list[UsageObject]
    has_more: bool
    # For `after`; null: this is the last page.
    next: str | None


class TenantObject(BaseModel):
    name: str
    status: Literal["active", "erasing", "erased"]
    bytes_stored: int
    max_bytes: int | None
    created_at: datetime
    erasing_at: datetime | None
    erasing_by: str | None
    erased_at: datetime | None


class TenantList(BaseModel):
    data: list[TenantObject]
    has_more: bool


async def _operator(actor: Deciding) -> Actor:
    tenants.check_operator(actor)
    return actor


Operating = Annotated[Actor, Depends(_operator)]


@usage_router.get("/usage", responses=governed_responses())
async def own_usage(
    actor: CurrentActor,
    context: InContext,
    since: date | None = None,
    until: date | None = None,
    by: Literal["day", "month", "total"] = "day",
) -> UsageList:
    """What your tenant has used, by day (UTC). A batch counts on the day on which it ends.

    `since` is the first day, `until` the first day after the last. Default: the last 30 days.
    """
    query = _query(actor.tenant, since, until, by, None, _MAX_ROWS)
    async with context.sessions.one() as session:
        return _displayed(query, await tenants.report(session, actor, query))


@usage_router.get("/admin/usage", responses=governed_responses())
async def all_usage(
    actor: Operating,
    context: InContext,
    tenant: Annotated[str | None, Query(max_length=64)] = None,
    since: date | None = None,
    until: date | None = None,
    by: Literal["day", "month", "total"] = "day",
    after: Annotated[str | None, Query(max_length=100, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_ROWS)] = 1000,
) -> UsageList:
    """What one tenant or all tenants have used. For operators."""
    query = _query(tenant, since, until, by, after, limit)
    async with context.sessions.one() as session:
        return _displayed(query, await tenants.report(session, actor, query))


@router.get("", responses=governed_responses())
async def list_tenants(
    actor: Operating,
    context: InContext,
    after: Annotated[str, Query(max_length=64, description="The last tenant of the previous page.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> TenantList:
    """All tenants by name, also erased ones. For operators."""
    async with context.sessions.one() as session:
        found = await store_tenants.page(session, after=after, limit=limit + 1)
    return TenantList(data=[_tenant(each) for each in found[:limit]], has_more=len(found) > limit)


@router.get("/{tenant}", responses=governed_responses(404))
async def get_tenant(tenant: TenantName, actor: Operating, context: InContext) -> TenantObject:
    async with context.sessions.one() as session:
        return _tenant(await tenants.get(session, tenant))


@router.put("/{tenant}/quota", responses=governed_responses(404))
async def set_quota(
    tenant: TenantName, requested: SetQuota, actor: Operating, context: InContext
) -> TenantObject:
    """Set how many bytes of files a tenant may store; null: any number. Nothing is deleted."""
    async with context.sessions.one() as session:
        changed = await tenants.set_quota(
            session, actor, tenant, requested.max_bytes, reason=requested.reason
        )
    return _tenant(changed)


@router.post("/{tenant}/erase", status_code=202, responses=governed_responses(404, 409))
async def erase_tenant(
    tenant: TenantName, requested: Erase, actor: Operating, context: InContext
) -> TenantObject:
    """Erase a tenant and all its data. Its keys stop working at once; workers delete the data.

    This cannot be undone. Repeating it changes nothing. The tenant's `status` says when it is done.
    """
    if requested.confirm != tenant:
        message = f"Invalid 'confirm': repeat the name of the tenant, {tenant!r}, to erase it."
        raise ApiError(400, message, code="INVALID_REQUEST", param="confirm")
    async with context.sessions.one() as session:
        return _tenant(await tenants.begin_erasure(session, actor, tenant, reason=requested.reason))


def _query(
    tenant: str | None,
    since: date | None,
    until: date | None,
    by: Literal["day", "month", "total"],
    after: str | None,
    limit: int,
) -> UsageQuery:
    first, last = tenants.usage_period(since, until)
    if first >= last:
        message = f"Invalid 'since': {first} is not before 'until', {last}."
        raise ApiError(400, message, code="INVALID_REQUEST", param="since")
    return UsageQuery(tenant, first, last, by, None if after is None else _position(after), limit)


def _position(after: str) -> tuple[date, str]:
    period, _, tenant = after.partition("/")
    try:
        return date.fromisoformat(period), tenant
    except ValueError:
        message = "Invalid 'after': use the value of 'next' in the previous page."
        raise ApiError(400, message, code="INVALID_REQUEST", param="after") from None


def _displayed(query: UsageQuery, report: UsageReport) -> UsageList:
    last = report.rows[-1] if report.has_more else None
    return UsageList(
        since=query.since,
        until=query.until,
        by=query.by,
        data=[_usage(each) for each in report.rows],
        running=[_usage(each) for each in report.running],
        has_more=report.has_more,
        next=None if last is None else f"{last.period}/{last.tenant}",
    )


def _usage(used: TenantUsage) -> UsageObject:
    return UsageObject(
        tenant=used.tenant,
        period=used.period,
        batches=used.batches,
        lines=used.lines,
        failed=used.failed,
        reused=used.reused,
        tokens=TokenCounts(
            input=used.input_tokens,
            cached=used.cached_tokens,
            output=used.output_tokens,
            reasoning=used.reasoning_tokens,
        ),
        cost_usd=dollars(used.cost),
        bytes_added=used.added,
        bytes_stored=None if used.period is None else used.stored,
    )


def _tenant(found: Tenant) -> TenantObject:
    return TenantObject(
        name=found.name,
        status="erasing" if found.erasing_at else "erased" if found.erased_at else "active",
        bytes_stored=found.stored,
        max_bytes=found.max_bytes,
        created_at=found.created_at,
        erasing_at=found.erasing_at,
        erasing_by=found.erasing_by,
        erased_at=found.erased_at,
    )

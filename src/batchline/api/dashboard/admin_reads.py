"""/api/v1/dashboard: what only admins read: keys, findings and the audit log."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.dashboard import cursors
from batchline.api.dashboard.reads import Cursor, Limit, Words, answer, whole
from batchline.api.errors import ApiError, documented
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.api.shares import WithinShare
from batchline.dashboard import findings
from batchline.governance import audit_search
from batchline.governance.access import Actor
from batchline.model import ApiKey, ids
from batchline.store import keys

router = APIRouter(
    prefix=f"{PREFIX}/dashboard",
    tags=["dashboard"],
    route_class=AuthenticatedRoute,
    dependencies=[WithinShare],
)


class KeyFigures(msgspec.Struct, frozen=True):
    """A key without its secret; `hint` has its first characters."""

    id: str
    name: str
    tenant: str
    role: str
    hint: str
    created_at: datetime
    revoked_at: datetime | None


@router.get("/keys", responses=documented(403))
async def list_keys(caller: Called, context: InContext, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """The tenant's API keys, newest first. For admins. Keys are created and revoked on the command line."""
    _check_admin(caller, "see API keys")
    after = None if cursor is None else cursors.decode(cursor, UUID)
    async with context.sessions.one() as session:
        found = await keys.page(session, caller.tenant, limit=limit + 1, after=after)
    following = cursors.encode(found[limit - 1].id) if len(found) > limit else None
    return answer(whole([_figures_of_key(each) for each in found[:limit]], cursor, following))


@router.get("/findings", responses=documented(403))
async def list_findings(caller: Called, context: InContext) -> Response:
    """What an admin should look at: late maintenance, batches that do not end, the state of the database."""
    _check_admin(caller, "see findings")
    async with context.sessions.one() as session:
        return answer(whole(await findings.read(session, caller.tenant), None, None))


@router.get("/audit", responses=documented(403))
async def search_audit(
    caller: Called,
    context: InContext,
    q: Words = None,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    action: Annotated[str | None, Query(max_length=64)] = None,
    since: Annotated[AwareDatetime | None, Query(alias="from")] = None,
    until: Annotated[AwareDatetime | None, Query(alias="to")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """The tenant's audit log, newest first. For admins."""
    _check_admin(caller, "read the audit log")
    after = None if cursor is None else cursors.decode(cursor, int)
    async with context.sessions.one() as session:
        found, more = await audit_search.search(
            session,
            caller,
            words=None if q is None else q.removeprefix(ids.BATCH),
            by=actor,
            action=action,
            since=since,
            before=until,
            after=after,
            limit=limit,
        )
    following = None if more is None else cursors.encode(more)
    return answer(whole([_entry(**msgspec.structs.asdict(each)) for each in found], cursor, following))


def _entry(*, batch_id: UUID | None, **fields: Any) -> dict[str, Any]:
    return fields | {"batch_id": None if batch_id is None else ids.show(ids.BATCH, batch_id)}


def _figures_of_key(key: ApiKey) -> KeyFigures:
    return KeyFigures(
        ids.show(ids.KEY, key.id),
        key.name,
        key.tenant,
        key.role.value,
        key.hint,
        key.created_at,
        key.revoked_at,
    )


def _check_admin(caller: Actor, act: str) -> None:
    if not caller.role.administers:
        raise ApiError(403, f"Only admins may {act}.", code="PERMISSION_DENIED")

"""/api/v1/dashboard: what its pages read. Each call shows one tenant, the caller's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.dashboard import cursors
from batchline.api.dashboard.parts import InDashboard
from batchline.api.errors import ApiError, documented, not_found
from batchline.api.governance.dependencies import InRules
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.api.shares import WithinShare
from batchline.dashboard import approval_requests, batch_page, file_problems, item_page
from batchline.dashboard.figures import figures_of
from batchline.governance.access import Actor
from batchline.model import Batch, BatchStatus, File, Role, ids
from batchline.store import batch_names, files, items, listing
from batchline.store.items import ItemPosition
from batchline.store.listing import BatchFilters, BatchSummary, BatchViewer, Found, Position, Sort
from batchline.store.session import Session

router = APIRouter(
    prefix=f"{PREFIX}/dashboard",
    tags=["dashboard"],
    route_class=AuthenticatedRoute,
    dependencies=[WithinShare],
)

Limit = Annotated[int, Query(ge=1, le=100)]
Cursor = Annotated[str | None, Query(max_length=500)]
Words = Annotated[str | None, Query(min_length=1, max_length=200)]
_STATUSES = frozenset(status.value for status in BatchStatus)
_HEX = frozenset("0123456789abcdef-")


class BatchCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins: after a batch, in the order of the list or against it."""

    sort: str
    backwards: bool
    value: str
    id: UUID


class ListTotal(msgspec.Struct, frozen=True):
    count: int
    exact: bool


class DashboardList(msgspec.Struct, frozen=True):
    data: Sequence[Any]
    next: str | None
    previous: str | None
    total: ListTotal


def answer(content: Any) -> Response:
    """Encoded by msgspec, which takes a tenth of the time of the usual way."""
    return Response(msgspec.json.encode(content), media_type="application/json")


def viewer_of(actor: Actor) -> BatchViewer:
    return BatchViewer(actor.tenant, actor.user if actor.role is Role.USER else None)


@router.get("/overview", responses=documented())
async def get_overview(caller: Called, context: InContext, dashboard: InDashboard) -> Response:
    """Rates, upstreams, workers and open batches. Only admins see workers."""
    async with context.sessions.one() as session:
        found = await dashboard.overviews.read(session, viewer_of(caller), workers=caller.role.administers)
    return answer(found)


@router.get("/batches", responses=documented())
async def list_batches(
    caller: Called,
    context: InContext,
    dashboard: InDashboard,
    q: Words = None,
    status: Annotated[str | None, Query(description="One or more, separated by commas.")] = None,
    kind: Literal["batch", "operation"] | None = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    tenant: Annotated[str | None, Query(max_length=64)] = None,
    created_after: AwareDatetime | None = None,
    created_before: AwareDatetime | None = None,
    sort: Sort = "created",
    order: Literal["asc", "desc"] | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Batches by filters, page by page. `deadline` sorts batches that have not ended, `failed` those with
    failures."""
    filters = BatchFilters(_statuses(status), kind, model, q, created_after, created_before)
    viewer = viewer_of(caller)
    descending = (order or ("asc" if sort == "deadline" else "desc")) == "desc"
    async with context.sessions.one() as session:
        if tenant not in (None, caller.tenant):
            return answer(DashboardList((), None, None, ListTotal(0, exact=True)))
        if q is not None and (named := await _named_by_id(session, caller, q)) is not None:
            found: Found[Position] = Found([Position("", each) for each in named])
            start = None
        else:
            start = _start(cursor, sort)
            forwards = start is None or not start.backwards
            found = await listing.page(
                session,
                viewer,
                filters,
                sort=sort,
                descending=descending is forwards,
                after=None if start is None else Position(start.value, start.id),
                limit=limit,
            )
        rows = found.rows if start is None or not start.backwards else list(reversed(found.rows))
        summaries = await listing.summaries(session, viewer, [each.id for each in rows])
        counted = await _total(session, viewer, filters, found, start)
    following, preceding = _around(sort, start, found, rows)
    data = [figures_of(each, dashboard.upstreams.of_batch) for each in summaries]
    return answer(DashboardList(data, following, preceding, counted or ListTotal(len(data), exact=False)))


@router.get("/batches/{batch_id}", responses=documented(404))
async def get_batch(
    batch_id: str, caller: Called, context: InContext, dashboard: InDashboard, rules: InRules
) -> Response:
    """One batch: what happened when, its rate, why items failed, and what the caller may do."""
    async with context.sessions.one() as session:
        summary = await _visible(session, caller, batch_id)
        page = await batch_page.read(session, caller, rules.registry, summary, dashboard.upstreams)
    return answer(page)


@router.get("/batches/{batch_id}/items", responses=documented(404))
async def list_items(
    batch_id: str,
    caller: Called,
    context: InContext,
    state: Literal["completed", "failed", "retrying", "in_flight", "pending", "cancelled", "expired"]
    | None = None,
    cause: Annotated[str | None, Query(max_length=64)] = None,
    q: Annotated[str | None, Query(min_length=1, max_length=200, description="Part of a custom_id.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Items of a batch. `pending`: never claimed; `retrying`: claimed before, and to be tried again."""
    if cause is not None and state not in (None, "failed"):
        raise ApiError(400, "Only failed items have a cause.", code="invalid_value", param="cause")
    async with context.sessions.one() as session:
        summary = await _visible(session, caller, batch_id)
        found = await items.page(
            session,
            summary.batch.id,
            state=state,
            cause=cause,
            words=q,
            after=None if cursor is None else _item_position(cursor),
            limit=limit,
        )
    following = None if found.more is None else cursors.encode((found.more.lane, found.more.at))
    count, exact = _item_count(summary.batch, state, filtered=bool(cause or q))
    data = [item_page.figures_of_item(each) for each in found.rows]
    total = ListTotal(len(data) if count is None else count, exact)
    return answer(DashboardList(data, following, None, total))


@router.get("/batches/{batch_id}/items/{line}", responses=documented(404))
async def get_item(
    batch_id: str,
    line: Annotated[int, Path(ge=1, le=2**31 - 1)],
    caller: Called,
    context: InContext,
    rules: InRules,
) -> Response:
    """One item: its request, its answer, and its attempts with where their time went."""
    async with context.sessions.one() as session:
        summary = await _visible(session, caller, batch_id)
        found = await item_page.read(session, caller, rules.registry, summary, line)
    if found is None:
        raise not_found("line", str(line), "line")
    return answer(found)


@router.get("/files", responses=documented(404))
async def list_files(
    caller: Called, context: InContext, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Files of the tenant, newest first, with the number of their problems."""
    async with context.sessions.one() as session:
        after = None
        if cursor is not None:
            after = await files.visible(session, caller.tenant, cursors.decode(cursor, UUID))
            if after is None:
                raise cursors.invalid()
        found = await files.page(session, caller.tenant, limit=limit + 1, after=after)
        data = await file_problems.figures_of_files(session, found[:limit])
    following = cursors.encode(found[limit - 1].id) if len(found) > limit else None
    return answer(whole(data, cursor, following))


@router.get("/files/{file_id}", responses=documented(404))
async def get_file(file_id: str, caller: Called, context: InContext) -> Response:
    """One file: its size, its models, the number of its problems, and the completion windows of batches over
    it."""
    async with context.sessions.one() as session:
        file = await _visible_file(session, caller, file_id)
        (figures,) = await file_problems.figures_of_files(session, [file])
    windows = {"completion_windows": context.settings.windows}
    return answer(msgspec.structs.asdict(figures) | windows)


@router.get("/files/{file_id}/problems", responses=documented(404))
async def list_problems(file_id: str, caller: Called, context: InContext) -> Response:
    """Why no batch can run over a file: the first hundred problems, with the beginning of their lines."""
    async with context.sessions.one() as session:
        file = await _visible_file(session, caller, file_id)
    return answer(await file_problems.read(context.objects, file))


@router.get("/approvals", responses=documented())
async def list_approvals(
    caller: Called,
    context: InContext,
    rules: InRules,
    limit: Annotated[int, Query(ge=1, le=approval_requests.MAX_REQUESTS)] = approval_requests.MAX_REQUESTS,
    cursor: Cursor = None,
) -> Response:
    """Governed batches that wait for an approval, with what will happen: of the whole tenant for approvers
    and admins."""
    after = None if cursor is None else cursors.decode(cursor, UUID)
    async with context.sessions.one() as session:
        found, more = await approval_requests.page(session, caller, rules.registry, limit=limit, after=after)
    return answer(whole(found, cursor, None if more is None else cursors.encode(more)))


async def visible_batches(session: Session, actor: Actor, named: Sequence[str]) -> list[UUID]:
    """The ids of those batches that the actor may see."""
    wanted = [found for text in named if (found := ids.read(ids.BATCH, text)) is not None]
    return [each.batch.id for each in await listing.summaries(session, viewer_of(actor), wanted)]


async def _visible(session: Session, actor: Actor, text: str) -> BatchSummary:
    batch_id = ids.read(ids.BATCH, text)
    found = [] if batch_id is None else await listing.summaries(session, viewer_of(actor), [batch_id])
    if not found:
        raise not_found("batch", text, "batch_id")
    return found[0]


async def _visible_file(session: Session, actor: Actor, text: str) -> File:
    file_id = ids.read(ids.FILE, text)
    file = None if file_id is None else await files.visible(session, actor.tenant, file_id)
    if file is None:
        raise not_found("file", text, "file_id")
    return file


async def _named_by_id(session: Session, actor: Actor, q: str) -> list[UUID] | None:
    """The batches whose ids begin with these digits; None: it is not the beginning of an id, or there is
    none."""
    digits = q.lower().removeprefix(ids.BATCH)
    if not batch_names.MIN_DIGITS <= len(digits) <= 36 or not set(digits) <= _HEX:
        return None
    digits = digits.replace("-", "")
    if not batch_names.MIN_DIGITS <= len(digits) <= 32:
        return None
    return await batch_names.matching(session, digits, 100, tenant=actor.tenant) or None


async def _total(
    session: Session,
    viewer: BatchViewer,
    filters: BatchFilters,
    found: Found[Position],
    start: BatchCursor | None,
) -> ListTotal | None:
    """Counted if an index can count it; None: only what is on the page is known."""
    dated = filters.created_after or filters.created_before
    if filters.selective or dated or viewer.user is not None:
        return ListTotal(len(found.rows), exact=True) if found.more is None and start is None else None
    number = await listing.count(session, viewer, filters)
    return ListTotal(min(number, listing.MAX_COUNT), exact=number <= listing.MAX_COUNT)


def _start(cursor: str | None, sort: Sort) -> BatchCursor | None:
    if cursor is None:
        return None
    start = cursors.decode(cursor, BatchCursor)
    if start.sort != sort:
        raise cursors.invalid()
    if sort != "failed":
        return msgspec.structs.replace(start, value=cursors.checked_time(start.value))
    if not start.value.isdecimal() or int(start.value) >= 2**31:
        raise cursors.invalid()
    return start


def _around(
    sort: str, start: BatchCursor | None, found: Found[Position], rows: Sequence[Position]
) -> tuple[str | None, str | None]:
    """The cursors of the next and the previous page."""

    def at(position: Position | None, *, backwards: bool) -> str | None:
        if position is None:
            return None
        return cursors.encode(BatchCursor(sort, backwards, position.value, position.id))

    if start is not None and start.backwards:
        last = rows[-1] if rows else Position(start.value, start.id)
        return at(last, backwards=False), at(found.more, backwards=True)
    first = None
    if start is not None:
        first = rows[0] if rows else Position(start.value, start.id)
    return at(found.more, backwards=False), at(first, backwards=True)


def whole(data: Sequence[Any], cursor: str | None, following: str | None) -> DashboardList:
    """A page of a list that is read forwards only, and counted only if it is the only page."""
    exact = cursor is None and following is None
    return DashboardList(data, following, None, ListTotal(len(data), exact))


def _item_position(cursor: str) -> ItemPosition:
    lane, at = cursors.decode(cursor, tuple[int, int])
    if not (0 <= lane < 2**63 and -1 <= at < 2**31):
        raise cursors.invalid()
    return ItemPosition(lane, at)


def _item_count(batch: Batch, state: str | None, *, filtered: bool) -> tuple[int | None, bool]:
    """How many items a list has, from the batch's counters; None: only those on the page are known."""
    if filtered:
        return None, False
    counts = batch.counts
    names = {"in_flight": "in_progress"}
    return (counts.total if state is None else getattr(counts, names.get(state, state))), True


def _statuses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    wanted = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    if unknown := [each for each in wanted if each not in _STATUSES]:
        known = ", ".join(sorted(_STATUSES))
        message = f"Invalid 'status': there is no status {unknown[0]!r}. Statuses: {known}."
        raise ApiError(400, message, code="invalid_value", param="status")
    return wanted

"""/api/v1/dashboard/events: live updates as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.dashboard.parts import InDashboard
from batchline.api.dashboard.reads import viewer_of, visible_batches
from batchline.api.errors import ApiError, documented
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.dashboard.live import MAX_WATCHED, Audience, Live, LiveStream, TooManyStreams

router = APIRouter(prefix=f"{PREFIX}/dashboard", tags=["dashboard"], route_class=AuthenticatedRoute)

# Proxies must not collect events before they pass them on.
_HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}
_RETRY_AFTER = {"retry-after": "10"}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **documented(429)},
)
async def get_events(
    request: Request,
    caller: Called,
    context: InContext,
    dashboard: InDashboard,
    watch: Annotated[
        str | None,
        Query(max_length=8_000, description="Ids of batches to report on, separated by commas."),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="Events are not repeated: after `hello`, read the page's data again.")
    ] = None,
) -> StreamingResponse:
    """Changes of the overview and of batches: the newest ones, those on the overview, and those in
    `watch`."""
    named = [] if watch is None else watch.split(",")
    if len(named) > MAX_WATCHED:
        message = f"Invalid 'watch': at most {MAX_WATCHED} batches can be watched."
        raise ApiError(400, message, code="invalid_value", param="watch")
    async with context.sessions.one() as session:
        watched = await visible_batches(session, caller, named)
    stream = LiveStream(
        Audience(viewer_of(caller), workers=caller.role.administers),
        caller.user,
        watched,
        request.state.credential,
    )
    events = _events(dashboard.live, stream)
    # Its first event comes at once, unless there are too many streams.
    try:
        first = await anext(events)
    except TooManyStreams as error:
        raise ApiError(
            429, str(error), code="too_many_streams", type="rate_limit_error", headers=_RETRY_AFTER
        ) from None
    return StreamingResponse(_joined(first, events), media_type="text/event-stream", headers=_HEADERS)


async def _events(live: Live, stream: LiveStream) -> AsyncIterator[bytes]:
    async with live.stream(stream) as events:
        async for event in events:
            yield event


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in rest:
        yield event

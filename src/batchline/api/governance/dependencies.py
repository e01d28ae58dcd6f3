"""Who calls a route of governed operations, and whether there were too many requests in this minute.

Only authenticated requests are counted. Reads and writes have a window each, of which a user has a share at
most. Decisions and admins' calls have a window per user alone, so others' load never refuses them.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.auth import Called
from batchline.api.context import Context, InContext
from batchline.api.errors import ApiError
from batchline.api.governance.errors import reported
from batchline.api.metrics import Counters
from batchline.governance import limits as checks
from batchline.governance.access import Actor
from batchline.governance.errors import LimitReached
from batchline.governance.governor import Governor
from batchline.model import RequestKind, Role
from batchline.store import limits


def _governor(request: Request) -> Governor:
    governor: Governor = request.app.state.governor
    return governor


def _counters(request: Request) -> Counters:
    counters: Counters = request.app.state.counters
    return counters


InGovernor = Annotated[Governor, Depends(_governor)]
InCounters = Annotated[Counters, Depends(_counters)]


@dataclass(frozen=True, slots=True)
class GovernedCaller:
    """The caller, and the rate-limit error to return unless this request is a replay."""

    actor: Actor
    over: LimitReached | None


async def _counted(called: Called, context: InContext, kind: RequestKind) -> GovernedCaller:
    actor = Actor(called.tenant, called.user, called.role, alone=called.key_id is None)
    allowed = context.settings.limits
    share = checks.share_of_requests(allowed, alone=actor.alone)
    async with context.sessions.one() as session:
        counted = await limits.count_request(session, actor.tenant, actor.user, kind, share)
    return GovernedCaller(actor, checks.requests_exceeded(allowed, counted, share))


async def _caller(request: Request, called: Called, context: InContext) -> GovernedCaller:
    kind = RequestKind.READ if request.method in ("GET", "HEAD") else RequestKind.WRITE
    return await _counted(called, context, kind)


Submitting = Annotated[GovernedCaller, Depends(_caller)]
"""For submissions, which are to be looked for among those that were made before, whatever the limits say."""


async def _actor(caller: Submitting, context: InContext, counters: InCounters) -> Actor:
    return _within_limits(caller, context, counters)


CurrentActor = Annotated[Actor, Depends(_actor)]


async def _decider(called: Called, context: InContext, counters: InCounters) -> Actor:
    return _within_limits(await _counted(called, context, RequestKind.DECISION), context, counters)


Deciding = Annotated[Actor, Depends(_decider)]
"""For what ends, stops or lets run a batch: it must be possible also while others flood the server."""


def _within_limits(caller: GovernedCaller, context: Context, counters: Counters) -> Actor:
    if caller.over is not None:
        counters.limited(caller.over)
        raise reported(caller.over, context.settings.limits.contact_admin)
    return caller.actor


async def _admin(actor: Deciding) -> Actor:
    if actor.role is not Role.ADMIN:
        raise ApiError(403, "Only admins may do this.", code="PERMISSION_DENIED")
    return actor


Administering = Annotated[Actor, Depends(_admin)]

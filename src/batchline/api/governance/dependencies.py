"""Dependencies of routes for governed operations: the actor, and the limits on requests per minute.

Only authenticated requests count. Reads and writes have one window each, and a user gets at most a share.
Decisions and admin calls have one window per user, so the load of other users never blocks them. For the same
reason the global limits do not refuse any other request of an admin.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.auth import Called
from batchline.api.context import ApiContext, InContext
from batchline.api.errors import ApiError
from batchline.api.governance.errors import reported
from batchline.api.metrics import Counters, InCounters
from batchline.governance import limits
from batchline.governance.access import Actor
from batchline.governance.errors import LimitReached
from batchline.governance.rules import Rules
from batchline.model import RequestKind


def _rules(request: Request) -> Rules:
    rules: Rules = request.app.state.rules
    return rules


InRules = Annotated[Rules, Depends(_rules)]


@dataclass(frozen=True, slots=True)
class GovernedCaller:
    """The caller, and the rate-limit error to return unless this request is a replay."""

    actor: Actor
    over: LimitReached | None


async def _counted(called: Called, context: InContext, kind: RequestKind) -> GovernedCaller:
    async with context.sessions.one() as session:
        return GovernedCaller(
            called, await limits.count_request(session, context.settings.limits, called, kind)
        )


async def _caller(request: Request, called: Called, context: InContext) -> GovernedCaller:
    kind = RequestKind.READ if request.method in ("GET", "HEAD") else RequestKind.WRITE
    return await _counted(called, context, kind)


Submitting = Annotated[GovernedCaller, Depends(_caller)]
"""For submissions: a replay of an earlier request is answered even over the limit."""


async def _deciding_caller(called: Called, context: InContext) -> GovernedCaller:
    return await _counted(called, context, RequestKind.DECISION)


SubmittingDecisions = Annotated[GovernedCaller, Depends(_deciding_caller)]
"""As `Submitting`, for batches of approvals: each item is a decision."""


async def _actor(caller: Submitting, context: InContext, counters: InCounters) -> Actor:
    return _within_limits(caller, context, counters)


CurrentActor = Annotated[Actor, Depends(_actor)]


async def _decider(caller: SubmittingDecisions, context: InContext, counters: InCounters) -> Actor:
    return _within_limits(caller, context, counters)


Deciding = Annotated[Actor, Depends(_decider)]
"""For acts that end, stop or start a batch: they must work while other users flood the server."""


def _within_limits(caller: GovernedCaller, context: ApiContext, counters: Counters) -> Actor:
    if caller.over is not None:
        counters.limited(caller.over)
        raise reported(caller.over, context.settings.limits.contact_admin)
    return caller.actor


async def _admin(actor: Deciding) -> Actor:
    if not actor.role.administers:
        raise ApiError(403, "Only admins may do this.", code="PERMISSION_DENIED")
    return actor


Administering = Annotated[Actor, Depends(_admin)]

"""Who calls a route of governed operations, and whether all together have called too often in this minute."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import ApiError
from batchline.api.metrics import Counters
from batchline.api.refusals import told
from batchline.engine.access import Actor
from batchline.engine.governance import Governor
from batchline.engine.refusals import LimitReached
from batchline.model import Role
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
class Caller:
    """A user who asks, and what is to be told him unless he has asked for the same before."""

    actor: Actor
    over: LimitReached | None


async def _caller(called: Called, context: InContext) -> Caller:
    most = context.settings.limits.requests_per_minute
    async with context.sessions.one() as session:
        requests, left = await limits.count_request(session)
    actor = Actor(called.tenant, called.user, called.role, alone=called.key_id is None)
    if requests <= most:
        return Caller(actor, None)
    message = f"All users together may make {most} requests a minute."
    return Caller(actor, LimitReached("global_requests_per_minute", requests, most, left, message))


Submitting = Annotated[Caller, Depends(_caller)]
"""For submissions, which are to be looked for among those that were made before, whatever the limits say."""


async def _actor(caller: Submitting, context: InContext, counters: InCounters) -> Actor:
    if caller.over is not None:
        counters.limited(caller.over)
        raise told(caller.over, context.settings.limits.contact_admin)
    return caller.actor


Acting = Annotated[Actor, Depends(_actor)]


async def _admin(actor: Acting) -> Actor:
    if actor.role is not Role.ADMIN:
        raise ApiError(403, "Only admins may do this.", code="PERMISSION_DENIED")
    return actor


Administering = Annotated[Actor, Depends(_admin)]

"""/api/v1/demand: the work of all tenants, and how many workers it needs. For autoscalers and
operators."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from batchline.api.errors import ApiError
from batchline.api.governance.dependencies import Deciding
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.metrics import InDatabaseMetrics
from batchline.api.routing import MonitoringRoute
from batchline.metrics.demand import UpstreamDemand
from batchline.metrics.labels import UpstreamNames

router = APIRouter(prefix=f"{PREFIX}/demand", tags=["demand"], route_class=MonitoringRoute)


class ModelDemandObject(BaseModel):
    model: Annotated[str | None, Field(description="Null: lines that an asynchronous provider works on.")]
    waiting: Annotated[int, Field(description="Lines that no worker holds and that have not ended.")]
    waited_seconds: Annotated[
        float | None, Field(description="How long the first has waited; null: all are being claimed.")
    ]
    next_deadline_seconds: Annotated[float | None, Field(description="Until the first deadline.")]
    in_flight: int
    rate: Annotated[float, Field(description="Lines that all workers finish per second.")]


class UpstreamDemandObject(BaseModel):
    upstream: str
    waiting: int
    in_flight: int
    rate: float
    required_rate: Annotated[float, Field(description="Lines per second that meet all deadlines.")]
    deadline_margin_seconds: Annotated[
        float | None,
        Field(
            description="Time that is left at the tightest deadline at the present rate. Null: no deadline."
        ),
    ]
    limited: Annotated[
        bool, Field(description="The upstream slows workers down, so more workers would not help.")
    ]
    workers_busy: int
    workers_needed: int
    models: list[ModelDemandObject]


class DemandObject(BaseModel):
    workers_needed: Annotated[
        int,
        Field(description="Of all upstreams: a worker serves all of them at once, so the largest counts."),
    ]
    upstreams: list[UpstreamDemandObject]
    truncated: Annotated[bool, Field(description="There are more models than are listed.")]


def _names(request: Request) -> UpstreamNames:
    names: UpstreamNames = request.app.state.names
    return names


@router.get("", responses=governed_responses())
async def demand(
    actor: Deciding, database: InDatabaseMetrics, names: Annotated[UpstreamNames, Depends(_names)]
) -> DemandObject:
    """The work that waits and is in flight, by upstream and model, and how many workers meet its deadlines.

    It covers all tenants, so it requires a key with the role `monitor` or `operator`. It is up to five
    seconds old. Batches of `batchline run` do not count: no worker takes them.
    """
    if not (actor.role.monitors or actor.alone):
        message = "Only keys with the role monitor or operator may see the work of all tenants."
        raise ApiError(403, message, code="PERMISSION_DENIED")
    found = await database.demand()
    return DemandObject(
        workers_needed=found.workers_needed,
        upstreams=[_upstream(each, names) for each in found.upstreams],
        truncated=found.truncated,
    )


def _upstream(each: UpstreamDemand, names: UpstreamNames) -> UpstreamDemandObject:
    return UpstreamDemandObject(
        upstream=names.displayed(each.upstream),
        waiting=each.waiting,
        in_flight=each.in_flight,
        rate=each.rate,
        required_rate=each.required_rate,
        deadline_margin_seconds=each.deadline_margin,
        limited=each.limited,
        workers_busy=each.workers_busy,
        workers_needed=each.workers_needed,
        models=[
            ModelDemandObject(
                model=part.model,
                waiting=part.waiting,
                waited_seconds=part.waited,
                next_deadline_seconds=part.next_deadline,
                in_flight=part.in_flight,
                rate=part.rate,
            )
            for part in each.models
        ],
    )

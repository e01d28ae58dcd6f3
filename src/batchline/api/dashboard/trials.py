"""/api/v1/dashboard/playground: try one request before a batch of many."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.context import InContext
from batchline.api.dashboard.parts import InDashboard
from batchline.api.dashboard.reads import answer
from batchline.api.errors import ApiError
from batchline.api.governance.dependencies import CurrentActor
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.dashboard.playground import TooManyTrials, UnknownUpstream, examined
from batchline.files.parsing import LineFault
from batchline.governance import trials
from batchline.model.endpoints import ENDPOINTS

router = APIRouter(prefix=f"{PREFIX}/dashboard", tags=["dashboard"], route_class=AuthenticatedRoute)


class TryRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    upstream: Annotated[str, StringConstraints(max_length=200)] | None = None
    endpoint: Annotated[str, Field(json_schema_extra={"enum": sorted(ENDPOINTS)})]
    body: dict[str, Any]


@router.post("/playground", responses=governed_responses(404))
async def try_request(
    requested: TryRequest, actor: CurrentActor, context: InContext, dashboard: InDashboard
) -> Response:
    """Send one request to an upstream, as a line of a batch would be sent. It counts as a write, and is in
    the audit log."""
    try:
        line = examined(requested.endpoint, msgspec.json.encode(requested.body))
        tried = await dashboard.playground.attempt(actor.tenant, line, requested.upstream)
    except LineFault as fault:
        raise ApiError(400, f"{fault}.", code=fault.code.value, param=fault.param) from None
    except UnknownUpstream as error:
        raise ApiError(404, str(error), code="model_not_found", param="upstream") from None
    except TooManyTrials as error:
        raise ApiError(
            429, str(error), code="too_many_trials", type="rate_limit_error", headers={"retry-after": "10"}
        ) from None
    async with context.sessions.one() as session:
        await trials.record(session, actor, line.model, line.url, requested.upstream, tried.status)
    return answer(tried)

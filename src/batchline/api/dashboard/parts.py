"""What the dashboard's routes share. Created once, when the server starts."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.context import ApiContext
from batchline.api.dashboard.actions import displayed_action
from batchline.dashboard.live import Live
from batchline.dashboard.overview import OverviewReader
from batchline.dashboard.playground import Playground
from batchline.dashboard.upstreams import UpstreamDirectory
from batchline.governance.registry import Registry


@dataclass(frozen=True, slots=True)
class DashboardParts:
    upstreams: UpstreamDirectory
    overviews: OverviewReader
    live: Live
    playground: Playground


def dashboard_parts(context: ApiContext, registry: Registry) -> DashboardParts:
    upstreams = UpstreamDirectory(context.settings, registry)
    overviews = OverviewReader(context.settings, upstreams)
    live = Live(
        context.sessions,
        overviews,
        upstreams,
        lambda action: displayed_action(action).model_dump(mode="json"),
        pause=context.live_pause,
    )
    return DashboardParts(upstreams, overviews, live, Playground(context.settings))


def _parts(request: Request) -> DashboardParts:
    parts: DashboardParts = request.app.state.dashboard
    return parts


InDashboard = Annotated[DashboardParts, Depends(_parts)]

"""The application on a listening socket. When it stops, it ends the streams that would not end by
themselves."""

import socket

from batchline.api.app import create_app
from batchline.api.context import ApiContext
from batchline.api.dashboard.pages import StaticPages
from batchline.api.dashboard.parts import DashboardParts
from batchline.api.server import Server
from batchline.governance.registry import Registry


def app_server(
    context: ApiContext,
    listening: socket.socket,
    registry: Registry | None = None,
    pages: StaticPages | None = None,
) -> Server:
    app = create_app(context, registry, pages)
    dashboard: DashboardParts = app.state.dashboard
    return Server(app, listening, on_stop=dashboard.live.stop)

"""The application: which routes there are, and what surrounds all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from batchline import __version__
from batchline.api import batches, files, health, models, uploads, webhooks
from batchline.api.access import AccessLog
from batchline.api.context import Context
from batchline.api.errors import handle_errors
from batchline.api.limits import BodyLimit, Patience
from batchline.engine.intake import Intake
from batchline.executors.catalog import Catalog

# Every resource is one module with one router.
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    files.router,
    uploads.router,
    batches.router,
    models.router,
    webhooks.router,
)


def create_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Batchline",
        version=__version__,
        description="Very large batches on PostgreSQL, for OpenAI's clients.",
        # A redirect would make a client send its body, and its key, a second time.
        redirect_slashes=False,
        lifespan=_life,
    )
    app.state.context = context
    app.state.catalog = Catalog(context.settings.upstreams)
    app.state.intake = Intake(context.url, context.objects, context.sessions)
    for router in ROUTERS:
        app.include_router(router)
    handle_errors(app)
    app.add_middleware(BodyLimit, most=context.settings.max_json_bytes)
    app.add_middleware(Patience)
    app.add_middleware(AccessLog)
    return app


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """The processes that take files in start when they are needed, and end with the server."""
    yield
    intake: Intake = app.state.intake
    await intake.close()

"""Composes the application: its routes, and the middleware around all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from batchline import __version__
from batchline.api import health, metrics
from batchline.api.access import AccessLog
from batchline.api.admin import rate_limits
from batchline.api.context import Context
from batchline.api.document import add_document
from batchline.api.downloads import Downloads
from batchline.api.errors import handle_errors
from batchline.api.governance import operations, submissions, vms
from batchline.api.governance.errors import handle_refusals
from batchline.api.limits import BodyLimit, SlowReaders
from batchline.api.metrics import Counters
from batchline.api.openai import batches, files, models, responses, uploads, webhooks
from batchline.files.intake import FileIntake
from batchline.governance import packs
from batchline.governance.preparation import PreparingPool
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.upstreams.catalog import Catalog

# One module and one router per resource.
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    files.router,
    uploads.router,
    batches.router,
    responses.router,
    models.router,
    webhooks.router,
    vms.router,
    submissions.router,
    operations.router,
    rate_limits.router,
    metrics.router,
)


def create_app(context: Context, registry: Registry | None = None) -> FastAPI:
    """With the operations of `registry`, or else of the settings."""
    settings = context.settings
    known = packs.registry(settings) if registry is None else registry
    counters = Counters(known)
    app = FastAPI(
        title="Batchline",
        version=__version__,
        description="Very large batches on PostgreSQL, for OpenAI's clients.",
        openapi_url=None,
        # A redirect would make a client send its body and its key twice.
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.context = context
    app.state.catalog = Catalog(context.settings.upstreams)
    app.state.intake = FileIntake(context.url, context.objects, context.sessions)
    app.state.preparing = PreparingPool()
    app.state.rules = Rules(known, settings.limits, settings.operation_window, app.state.preparing)
    app.state.downloads = Downloads(context.sessions)
    app.state.counters = counters
    # These come before the route for unknown operations.
    for router in (submissions.submission_routes(known), *ROUTERS):
        app.include_router(router)
    add_document(app, settings)
    handle_errors(app, counters.unread)
    handle_refusals(app, settings.limits.contact_admin)
    app.add_middleware(BodyLimit, maximum=context.settings.max_json_bytes, unread=counters.unread)
    app.add_middleware(SlowReaders)
    app.add_middleware(AccessLog)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """End the processes that ingest files and check items. They start on demand."""
    yield
    intake: FileIntake = app.state.intake
    preparing: PreparingPool = app.state.preparing
    await intake.close()
    await preparing.close()

"""Composes the application: its routes, and the middleware around all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from batchline import __version__
from batchline.api import health, metrics
from batchline.api.access import AccessLog
from batchline.api.admin import demand, rate_limits, tenants
from batchline.api.browser import OwnHostOnly, SecurityHeaders, SignInLimit
from batchline.api.context import ApiContext
from batchline.api.dashboard import actions, admin_reads, batch_acts, events, reads, sign_in, trials
from batchline.api.dashboard.pages import StaticPages
from batchline.api.dashboard.parts import DashboardParts, dashboard_parts
from batchline.api.document import add_document
from batchline.api.downloads import Downloads
from batchline.api.errors import handle_errors
from batchline.api.governance import downloads as child_downloads
from batchline.api.governance import operations, submissions, vms
from batchline.api.governance.errors import handle_refusals
from batchline.api.limits import BodyLimit, SlowReaders
from batchline.api.metrics import Counters, PoolMetrics, RequestMetrics
from batchline.api.openai import batches, files, models, responses, uploads, webhooks
from batchline.api.shares import Shares
from batchline.api.tracing import SubmissionTraces
from batchline.files.intake import FileIntake
from batchline.governance import packs
from batchline.governance.preparation import PreparingPool
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.metrics.database import DatabaseMetrics
from batchline.metrics.labels import UpstreamNames
from batchline.metrics.process import ProcessMetrics
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
    child_downloads.router,
    rate_limits.router,
    demand.router,
    tenants.usage_router,
    tenants.router,
    actions.router,
    batch_acts.router,
    metrics.router,
    sign_in.public_router,
    sign_in.router,
    reads.router,
    admin_reads.router,
    events.router,
    trials.router,
)


def create_app(
    context: ApiContext, registry: Registry | None = None, pages: StaticPages | None = None
) -> FastAPI:
    """With the operations of `registry`, or else of the settings; and with the pages of the package, or
    others."""
    settings = context.settings
    known = packs.registry(settings) if registry is None else registry
    counters = Counters(known)
    counters.registry.register(PoolMetrics(context.sessions))
    names = UpstreamNames(settings, known)
    app = FastAPI(
        title="Batchline",
        version=__version__,
        description="Very large batches on PostgreSQL, for OpenAI's clients.",
        openapi_url=None,
        # A redirect would make a client send its body and its key twice.
        redirect_slashes=False,
        lifespan=_lifespan,
        # FastAPI's own would send what callers wrote: the input of refused requests, and messages of errors.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.context = context
    app.state.catalog = Catalog(context.settings.upstreams)
    app.state.intake = FileIntake(context.url, context.objects, context.sessions)
    app.state.preparing = PreparingPool()
    app.state.rules = Rules(known, settings.limits, settings.operation_window, app.state.preparing)
    app.state.downloads = Downloads(context.sessions)
    app.state.counters = counters
    app.state.process_metrics = ProcessMetrics(counters.registry)
    app.state.names = names
    app.state.database_metrics = DatabaseMetrics(context.url, names, context.metrics)
    app.state.dashboard = dashboard_parts(context, known)
    app.state.sign_ins = SignInLimit()
    app.state.shares = Shares(settings.sessions)
    # These come before the route for unknown operations.
    for router in (submissions.submission_routes(known), *ROUTERS):
        app.include_router(router)
    app.include_router((pages or StaticPages.of_package()).router())
    add_document(app, settings)
    handle_errors(app, counters.unread)
    handle_refusals(app, settings.limits.contact_admin)
    app.add_middleware(BodyLimit, maximum=context.settings.max_json_bytes, unread=counters.unread)
    if context.tracer is not None:
        app.add_middleware(SubmissionTraces, tracer=context.tracer)
    app.add_middleware(SlowReaders)
    if context.local is not None:
        app.add_middleware(OwnHostOnly, port=context.local.port)
    app.add_middleware(AccessLog)
    # Around the log, which answers unexpected errors.
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestMetrics, counters=counters)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Measure the event loop. At the end, end the processes that ingest files and check items, which start
    on demand, and close the connection for metrics."""
    process: ProcessMetrics = app.state.process_metrics
    async with process.measuring():
        yield
    intake: FileIntake = app.state.intake
    preparing: PreparingPool = app.state.preparing
    dashboard: DashboardParts = app.state.dashboard
    await intake.close()
    await preparing.close()
    database: DatabaseMetrics = app.state.database_metrics
    await database.close()
    await dashboard.playground.close()

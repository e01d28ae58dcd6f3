"""The application: which routes there are, and what surrounds all of them."""

from fastapi import APIRouter, FastAPI

from batchline import __version__
from batchline.api import batches, health, models
from batchline.api.access import AccessLog
from batchline.api.context import Context
from batchline.api.errors import handle_errors
from batchline.api.limits import BodyLimit

# Every resource is one module with one router.
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    batches.router,
    models.router,
)


def create_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Batchline",
        version=__version__,
        description="Very large batches on PostgreSQL, for OpenAI's clients.",
        # A redirect would make a client send its body, and its key, a second time.
        redirect_slashes=False,
    )
    app.state.context = context
    for router in ROUTERS:
        app.include_router(router)
    handle_errors(app)
    app.add_middleware(BodyLimit, most=context.settings.max_json_bytes)
    app.add_middleware(AccessLog)
    return app

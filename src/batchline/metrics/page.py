"""The pages of a worker's metrics port. They need no key: the port is on loopback unless the operator says
otherwise, and the pages show no secret."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from batchline.metrics.database import Collected, DatabaseMetrics
from batchline.metrics.worker import WorkerMetrics


async def database_text(database: DatabaseMetrics, only: Collection[str] | None = None) -> bytes:
    """The metrics of the whole database, or parts of them, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(Collected(await database.metrics(only)))
    return generate_latest(registry)


def page(text: bytes) -> Response:
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def worker_pages(worker: WorkerMetrics, database: DatabaseMetrics) -> Starlette:
    """`/metrics` asks the database nothing. `/metrics/database` does, for the one scraper that wants it."""

    async def metrics(request: Request) -> Response:
        return page(generate_latest(worker.registry))

    async def database_metrics(request: Request) -> Response:
        return page(await database_text(database))

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/metrics/database", database_metrics),
            Route("/healthz", health),
        ]
    )

"""/metrics, for Prometheus.

Each server counts its own requests, submissions and refusals, and is a separate target. What is true of the
whole database is read when somebody asks, so every server reports the same numbers (metrics/database.py).
"""

import re
import time
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchline.api.auth import Called
from batchline.api.errors import ApiError, documented
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import MonitoringRoute
from batchline.governance.approvals import APPROVE
from batchline.governance.errors import LimitReached
from batchline.governance.registry import Registry
from batchline.metrics import definitions
from batchline.metrics.database import OF_OPERATIONS, DatabaseMetrics
from batchline.metrics.labels import OTHER
from batchline.metrics.page import database_text, page
from batchline.store.pool import Sessions

router = APIRouter(tags=["health"], route_class=MonitoringRoute)

# Paths of submissions. For virtual machines, only the body contains the operation.
_SUBMISSION = re.compile(rf"{PREFIX}/(?:operations/([^/]+)/batches|vms/batch(?:/power)?|approvals/batch)")
_APPROVALS = f"{PREFIX}/approvals/batch"
_UNKNOWN = "unknown"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class Counters:
    """Counters of this server since it started."""

    def __init__(self, known: Registry) -> None:
        self._known = known
        self.registry = CollectorRegistry()
        self._submitted = definitions.SUBMITTED.counter(self.registry)
        self._limited = definitions.LIMITED.counter(self.registry)
        self._answered = definitions.HTTP_REQUESTS.histogram(self.registry)

    def submitted(self, operation: str, result: str) -> None:
        # Callers choose the name, so unknown names share one series.
        self._submitted.labels(operation if operation in self._known else _UNKNOWN, result).inc()

    def unread(self, scope: Scope) -> None:
        """Count a request that was refused before its route ran, if it was a submission."""
        path = scope["path"]
        named = _SUBMISSION.fullmatch(path)
        if named is not None and scope["method"] == "POST":
            self.submitted(APPROVE.name if path == _APPROVALS else named[1] or _UNKNOWN, "invalid")

    def limited(self, refused: LimitReached) -> None:
        self._limited.labels(refused.limit_type).inc()

    def answered(self, method: str, status: int, seconds: float) -> None:
        """Count a request. `status`: 0 if it was not answered."""
        # Callers choose the method, too.
        self._answered.labels(method if method in _METHODS else OTHER, str(status)).observe(seconds)


class PoolMetrics(Collector):
    """The pools of database connections."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        size, in_use = definitions.POOL_SIZE.gauge_family(), definitions.POOL_IN_USE.gauge_family()
        waiting, refused = definitions.POOL_WAITING.gauge_family(), definitions.POOL_REFUSED.counter_family()
        for pool in self._sessions.usage():
            size.add_metric((pool.name,), pool.size)
            in_use.add_metric((pool.name,), pool.in_use)
            waiting.add_metric((pool.name,), pool.waiting)
            refused.add_metric((pool.name,), pool.refused)
        yield from (size, in_use, waiting, refused)


class RequestMetrics:
    """Middleware around all others: it sees every answer, also to unexpected errors."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._counters.answered(scope["method"], status, time.perf_counter() - started)


def _counters(request: Request) -> Counters:
    counters: Counters = request.app.state.counters
    return counters


InCounters = Annotated[Counters, Depends(_counters)]


def _database_metrics(request: Request) -> DatabaseMetrics:
    found: DatabaseMetrics = request.app.state.database_metrics
    return found


InDatabaseMetrics = Annotated[DatabaseMetrics, Depends(_database_metrics)]


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **documented(403)},
)
async def metrics(caller: Called, counters: InCounters, database: InDatabaseMetrics) -> Response:
    """Metrics of this server, of operations, and of the work of all tenants.

    Requires a key with the role `monitor`, `operator` or `admin`. Admins do not see the work of all tenants.
    """
    whole = caller.role.monitors or caller.alone
    if not whole and not caller.role.administers:
        message = "Only keys with the role monitor, operator or admin may read the metrics."
        raise ApiError(403, message, code="PERMISSION_DENIED")
    # Names of models are free text of other tenants.
    only = None if whole else OF_OPERATIONS
    return page(generate_latest(counters.registry) + await database_text(database, only))

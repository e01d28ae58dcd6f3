"""/metrics, for Prometheus.

Each server counts its own submissions and refusals, and is a separate target. Totals of all workers are read
from the database at each scrape, so every server reports the same numbers.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.types import Scope

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import ApiError, documented
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute
from batchline.governance.approvals import APPROVE
from batchline.governance.errors import LimitReached
from batchline.governance.registry import Registry
from batchline.model import DURATION_BOUNDS, Role
from batchline.secrets.addresses import public_url
from batchline.store import operations, providers, spans
from batchline.store.operations import Durations
from batchline.store.providers import ProviderCounts

router = APIRouter(tags=["health"], route_class=AuthenticatedRoute)

# Paths of submissions. For virtual machines, only the body contains the operation.
_SUBMISSION = re.compile(rf"{PREFIX}/(?:operations/([^/]+)/batches|vms/batch(?:/power)?|approvals/batch)")
_APPROVALS = f"{PREFIX}/approvals/batch"
_UNKNOWN = "unknown"


class Counters:
    """Counters of this server since it started."""

    def __init__(self, known: Registry) -> None:
        self._known = known
        self.registry = CollectorRegistry()
        self._submitted = Counter(
            "batch_submit",
            "Submissions by operation and result.",
            ("batch_type", "result"),
            registry=self.registry,
        )
        self._limited = Counter(
            "rate_limit_rejections",
            "Requests refused because of a limit.",
            ("limit_type",),
            registry=self.registry,
        )

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


class _Ended(Collector):
    """Totals of all workers, from the database."""

    def __init__(
        self,
        totals: Sequence[tuple[str, int, int, int]],
        durations: Sequence[Durations],
        providers: Sequence[ProviderCounts],
    ) -> None:
        self._totals = totals
        self._durations = durations
        self._providers = providers

    def collect(self) -> Iterator[Metric]:
        children = CounterMetricFamily(
            "batch_child_execution", "Children that have ended.", labels=("batch_type", "status")
        )
        for operation, succeeded, failed, cancelled in self._totals:
            for status, total in (("succeeded", succeeded), ("failed", failed), ("cancelled", cancelled)):
                children.add_metric((operation, status), total)
        yield children
        lasted = HistogramMetricFamily(
            "batch_parent_duration_seconds",
            "From submission until no child was pending for the first time.",
            labels=("batch_type",),
        )
        for each in self._durations:
            buckets = [(str(bound), each.within(bound)) for bound in DURATION_BOUNDS]
            lasted.add_metric((each.operation,), [*buckets, ("+Inf", each.batches)], each.seconds)
        yield lasted
        waiting = GaugeMetricFamily(
            "provider_items",
            "Items that providers work on, or may have accepted without an answer.",
            labels=("upstream", "state"),
        )
        for counted in self._providers:
            # A batch may name an upstream with a password in its URL.
            upstream = public_url(counted.upstream)
            waiting.add_metric((upstream, "processing"), counted.processing)
            waiting.add_metric((upstream, "submission_unknown"), counted.submission_unknown)
        yield waiting


def _counters(request: Request) -> Counters:
    counters: Counters = request.app.state.counters
    return counters


InCounters = Annotated[Counters, Depends(_counters)]


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **documented(403)},
)
async def metrics(caller: Called, context: InContext, counters: InCounters) -> Response:
    """Metrics of the operations of all tenants. Requires an admin's key."""
    if caller.role is not Role.ADMIN:
        raise ApiError(403, "Only admins may read the metrics.", code="PERMISSION_DENIED")
    async with context.sessions.one() as session:
        ended = _Ended(
            await operations.totals(session),
            await operations.durations(session),
            await providers.counts(session, spans.Scope()),
        )
    fresh = CollectorRegistry()
    fresh.register(ended)
    text = generate_latest(counters.registry) + generate_latest(fresh)
    return Response(text, media_type=CONTENT_TYPE_LATEST)

"""Metrics of the workers of one process. Reading them asks the database nothing."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from batchline.batches.maintenance import FINDINGS
from batchline.metrics import definitions, exports
from batchline.metrics.labels import BoundedLabels, UpstreamNames
from batchline.metrics.process import ProcessMetrics
from batchline.model import Claim, Completed, Failed, Retried, Verdict
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.observer import WorkerObserver
from batchline.worker.worker import Worker

# Codes of errors that retries have. Executors of users may have others.
_MAX_CODES = 50


class WorkerMetrics(WorkerObserver, Collector):
    """Counts what workers report, and looks at them when somebody asks."""

    def __init__(self, names: UpstreamNames, upstreams: Upstreams) -> None:
        self._names = names
        self._upstreams = upstreams
        self._codes = BoundedLabels(maximum=_MAX_CODES)
        self._workers: list[Worker] = []
        self.registry = registry = CollectorRegistry()
        self.process = ProcessMetrics(registry)
        self._claims = definitions.CLAIM_SECONDS.histogram(registry)
        self._settles = definitions.SETTLE_SECONDS.histogram(registry)
        self._items = definitions.ITEMS.counter(registry)
        self._retries = definitions.RETRIES.counter(registry)
        self._lease_losses = definitions.LEASE_LOSSES.counter(registry)
        self._findings = definitions.MAINTENANCE_FINDINGS.counter(registry)
        for kind in FINDINGS:
            self._findings.labels(kind)
        registry.register(self)

    def watch(self, worker: Worker) -> None:
        """One of the workers of this process."""
        self._workers.append(worker)

    def claim_ended(self, seconds: float, items: int) -> None:
        self._claims.observe(seconds)

    def settle_ended(self, seconds: float, verdicts: Sequence[Verdict]) -> None:
        self._settles.observe(seconds)
        claims, outcomes = dict[int, Claim](), Counter[tuple[int, str, str]]()
        for verdict in verdicts:
            claim = verdict.item.claim
            claims[claim.span_id] = claim
            match verdict:
                case Completed():
                    outcomes[claim.span_id, "completed", ""] += 1
                case Failed():
                    outcomes[claim.span_id, "failed", ""] += 1
                case Retried():
                    outcomes[claim.span_id, "", verdict.error_code] += 1
        for (span_id, outcome, code), count in outcomes.items():
            upstream = self._names.claim_label(claims[span_id])
            for each in ("completed", "failed"):
                # Ratios need both from the start.
                self._items.labels(upstream, each)
            if outcome:
                self._items.labels(upstream, outcome).inc(count)
            else:
                self._retries.labels(upstream, self._codes.of(code)).inc(count)

    def lease_lost(self) -> None:
        self._lease_losses.inc()

    def maintenance_found(self, kind: str, count: int) -> None:
        self._findings.labels(kind).inc(count)

    def collect(self) -> Iterator[Metric]:
        others = [each for each in self._workers if each.upstreams is not self._upstreams]
        views = [*self._upstreams.views(), *(view for each in others for view in each.upstream_views())]
        yield from exports.upstreams(views, self._names)
        if not self._workers:
            return
        now, settlers = asyncio.get_running_loop().time(), [worker.settler for worker in self._workers]
        pending = [now - each.settling_since for each in settlers if each.settling_since is not None]
        yield definitions.CLAIMED.total(sum(worker.claimed for worker in self._workers))
        yield definitions.UNSETTLED.gauge(sum(each.unsettled for each in settlers))
        yield definitions.SETTLE_PENDING.gauge(max(pending, default=0.0))

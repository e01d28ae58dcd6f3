"""What was read of the database, and of upstreams, as metrics.

Several things may have the same labels, because labels are bounded and hide secrets. They become one sample:
Prometheus refuses a page with two.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from prometheus_client.metrics_core import Metric

from batchline.metrics import definitions
from batchline.metrics.definitions import MetricDefinition
from batchline.metrics.demand import Demand
from batchline.metrics.labels import BoundedLabels, UpstreamNames
from batchline.model import DURATION_BOUNDS
from batchline.store.monitoring import Connections, Delay, OldestSnapshot, OpenBatches, RowCounts
from batchline.store.operations import Durations
from batchline.store.providers import ProviderCounts
from batchline.store.schedules import ScheduleLag
from batchline.upstreams.view import UpstreamView

# An outage after which nobody has tried for so long is over for all that is known: there are no lines for it.
_TRIED = 120.0

Combine: TypeAlias = Callable[[float, float], float]


def _add(one: float, other: float) -> float:
    return one + other


class Samples:
    """The samples of a gauge or a counter, one per set of labels."""

    def __init__(self, definition: MetricDefinition, combine: Combine = _add) -> None:
        self._definition = definition
        self._combine = combine
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, value: float | None, *labels: str) -> None:
        """None: there is no value."""
        if value is not None:
            before = self._values.get(labels)
            self._values[labels] = value if before is None else self._combine(before, value)

    def metric(self) -> Metric:
        of = self._definition
        family = of.counter_family() if of.kind == "counter" else of.gauge_family()
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


def demand(found: Demand, names: UpstreamNames) -> Iterator[Metric]:
    items, age = Samples(definitions.QUEUE_ITEMS), Samples(definitions.QUEUE_AGE, max)
    in_flight, rate = Samples(definitions.IN_FLIGHT), Samples(definitions.FINISH_RATE)
    margin, required = Samples(definitions.DEADLINE_MARGIN, min), Samples(definitions.REQUIRED_RATE)
    needed, busy = Samples(definitions.WORKERS_NEEDED, max), Samples(definitions.BUSY_WORKERS, max)
    for each in found.upstreams:
        upstream = names.upstream_label(each.upstream)
        for part in each.models:
            model = names.model_label(part.model)
            items.add(part.waiting, upstream, model)
            age.add(part.waited or 0.0, upstream, model)
            in_flight.add(part.in_flight, upstream, model)
            rate.add(part.rate, upstream, model)
        margin.add(each.deadline_margin, upstream)
        required.add(each.required_rate, upstream)
        needed.add(each.workers_needed, upstream)
        busy.add(each.workers_busy, upstream)
    for samples in (items, age, in_flight, rate, margin, required, needed, busy):
        yield samples.metric()
    yield definitions.DEMAND.gauge(found.workers_needed)


def open_batches(found: OpenBatches) -> Iterator[Metric]:
    batches = Samples(definitions.OPEN_BATCHES)
    for status in ("in_progress", "paused", "stopped", "held", "closing", "finalizing"):
        batches.add(getattr(found, status), status)
    yield batches.metric()
    yield definitions.OVERDUE_BATCHES.gauge(found.overdue)
    yield definitions.FINALIZING_AGE.gauge(found.age)
    yield definitions.FINALIZING_FAILED.gauge(found.failed)


def maintenance(delays: Sequence[Delay]) -> Iterator[Metric]:
    samples = Samples(definitions.MAINTENANCE_DELAY)
    for each in delays:
        samples.add(each.seconds, each.task)
    yield samples.metric()


def schedule_lags(found: Sequence[ScheduleLag], labels: BoundedLabels) -> Iterator[Metric]:
    """Those that are late come first, so they have labels of their own."""
    samples = Samples(definitions.SCHEDULE_LAG, max)
    for each in found:
        samples.add(each.seconds, labels.of(each.name))
    yield samples.metric()


def row_counts(tables: Sequence[RowCounts]) -> Iterator[Metric]:
    dead, live = Samples(definitions.DEAD_ROWS), Samples(definitions.LIVE_ROWS)
    for each in tables:
        dead.add(each.dead, each.table)
        live.add(each.live, each.table)
    yield dead.metric()
    yield live.metric()


def oldest_snapshot(found: OldestSnapshot) -> Iterator[Metric]:
    yield definitions.SNAPSHOT_AGE.gauge(found.seconds)
    yield definitions.SNAPSHOT_TRANSACTIONS.gauge(found.transactions)


def connections(found: Connections) -> Iterator[Metric]:
    samples = Samples(definitions.CONNECTIONS)
    samples.add(found.used, "all")
    samples.add(found.own, "batchline")
    yield samples.metric()
    yield definitions.CONNECTIONS_ALLOWED.gauge(found.allowed)


def children(totals: Sequence[tuple[str, int, int, int]]) -> Iterator[Metric]:
    family = definitions.CHILDREN.counter_family()
    for operation, succeeded, failed, cancelled in totals:
        for status, total in (("succeeded", succeeded), ("failed", failed), ("cancelled", cancelled)):
            family.add_metric((operation, status), total)
    yield family


def durations(found: Sequence[Durations]) -> Iterator[Metric]:
    family = definitions.DURATIONS.histogram_family()
    for each in found:
        buckets = [(str(bound), each.within(bound)) for bound in DURATION_BOUNDS]
        family.add_metric((each.operation,), [*buckets, ("+Inf", each.batches)], each.seconds)
    yield family


def provider_items(found: Sequence[ProviderCounts], names: UpstreamNames) -> Iterator[Metric]:
    samples = Samples(definitions.PROVIDER_ITEMS)
    for each in found:
        upstream = names.upstream_label(names.of_keys.get(each.upstream, each.upstream))
        samples.add(each.processing, upstream, "processing")
        samples.add(each.submission_unknown, upstream, "submission_unknown")
    yield samples.metric()


def upstreams(views: Iterable[UpstreamView], names: UpstreamNames) -> Iterator[Metric]:
    in_flight, limit = Samples(definitions.UPSTREAM_IN_FLIGHT), Samples(definitions.UPSTREAM_LIMIT)
    max_limit, oldest = Samples(definitions.UPSTREAM_MAX_LIMIT), Samples(definitions.UPSTREAM_OLDEST, max)
    latency = Samples(definitions.UPSTREAM_LATENCY, max)
    reachable = Samples(definitions.UPSTREAM_REACHABLE, min)
    available = Samples(definitions.UPSTREAM_AVAILABLE, min)
    crashes, suspects = Samples(definitions.UPSTREAM_CRASHES), Samples(definitions.UPSTREAM_SUSPECTS)
    refusing = Samples(definitions.UPSTREAM_RATE_LIMITED, max)
    signal = Samples(definitions.UPSTREAM_SIGNAL, max)
    budget_waiting, budget_wait = Samples(definitions.BUDGET_WAITING), Samples(definitions.BUDGET_WAIT, max)
    for view in views:
        upstream = names.upstream_label(view.url)
        budget_waiting.add(0 if view.budget is None else view.budget.waiting, upstream)
        budget_wait.add(0.0 if view.budget is None else view.budget.seconds, upstream)
        in_flight.add(view.in_flight, upstream)
        limit.add(view.limit, upstream)
        max_limit.add(view.max_limit, upstream)
        if view.signal_label:
            signal.add(1.0, upstream, view.signal_label)
        oldest.add(view.oldest or 0.0, upstream)
        latency.add(view.p50, upstream, "50")
        latency.add(view.p95, upstream, "95")
        if view.last_try < _TRIED:
            reachable.add(float(view.connects), upstream)
            available.add(float(view.unavailable_for is None), upstream)
        crashes.add(view.crashes, upstream)
        suspects.add(view.suspects, upstream)
        refusing.add(float(view.rate_limit is not None), upstream)
    for samples in (
        *(in_flight, limit, max_limit, signal, oldest, latency, reachable, available),
        *(crashes, suspects, refusing),
        *(budget_waiting, budget_wait),
    ):
        yield samples.metric()

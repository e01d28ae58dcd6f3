"""Every metric, defined once: its name, what it means and its labels. The reference page, the tests of the
dashboard and of the alert rules, and the code that exports them all use these definitions.

Labels are bounded: their values come from fixed sets or go through `BoundedLabels`. No tenant, user, batch or
key is a label.
"""

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class MetricSource(StrEnum):
    """Where a metric is measured."""

    # Totals of the whole database: in the server's /metrics, and in a worker's /metrics/database.
    DATABASE = "database"
    WORKER = "worker"
    SERVER = "server"
    # Of both kinds of processes.
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    # As PromQL has it, without _bucket, _sum and _count of a histogram.
    name: str
    kind: str
    help: str
    source: MetricSource
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def counter(self, registry: CollectorRegistry) -> Counter:
        return Counter(self.name, self.help, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        return Histogram(self.name, self.help, self.labels, buckets=self.buckets, registry=registry)

    def counter_family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name, self.help, labels=self.labels)

    def gauge_family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def histogram_family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.help, labels=self.labels)

    def gauge(self, value: float) -> GaugeMetricFamily:
        """A gauge without labels."""
        return GaugeMetricFamily(self.name, self.help, value=value)

    def total(self, value: float) -> CounterMetricFamily:
        """A counter without labels."""
        return CounterMetricFamily(self.name, self.help, value=value)


def _counter(name: str, help: str, source: MetricSource, *labels: str) -> MetricDefinition:
    return MetricDefinition(name, "counter", help, source, labels)


def _gauge(name: str, help: str, source: MetricSource, *labels: str) -> MetricDefinition:
    return MetricDefinition(name, "gauge", help, source, labels)


# Of statements: a claim takes about a millisecond, and is given up after 30 seconds.
_STATEMENT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUEST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LAG = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# The queue

QUEUE_ITEMS = _gauge(
    "batchline_queue_items",
    "Lines that no worker holds and that have not ended, of batches that run.",
    MetricSource.DATABASE,
    "upstream",
    "model",
)
QUEUE_AGE = _gauge(
    "batchline_queue_age_seconds",
    "How long the first of them has waited: since its batch began if none of its lane's lines was claimed,"
    " or since it came due again; 0 if all lanes are being claimed from.",
    MetricSource.DATABASE,
    "upstream",
    "model",
)
IN_FLIGHT = _gauge(
    "batchline_in_flight",
    "Lines in flight, as all live workers have reported within their lease.",
    MetricSource.DATABASE,
    "upstream",
    "model",
)
FINISH_RATE = _gauge(
    "batchline_finish_rate",
    "Lines that all live workers finish per second, as they have reported.",
    MetricSource.DATABASE,
    "upstream",
    "model",
)
DEADLINE_MARGIN = _gauge(
    "batchline_deadline_margin_seconds",
    "Time that is left at the tightest deadline if the work goes on at the present rate; negative: it will"
    " be late. While no rate is known, the time until the first deadline. Missing without deadlines.",
    MetricSource.DATABASE,
    "upstream",
)
REQUIRED_RATE = _gauge(
    "batchline_required_rate",
    "Lines per second that meet all deadlines.",
    MetricSource.DATABASE,
    "upstream",
)
WORKERS_NEEDED = _gauge(
    "batchline_workers_needed",
    "Workers that the work of this upstream needs to meet its deadlines, at the measured rate of one worker.",
    MetricSource.DATABASE,
    "upstream",
)
DEMAND = _gauge(
    "batchline_demand_workers",
    "Workers that all work needs. A worker serves all upstreams at once, so it is the largest of"
    " batchline_workers_needed, and at least 1 while there is anything to do. For autoscalers.",
    MetricSource.DATABASE,
)
BUSY_WORKERS = _gauge(
    "batchline_workers_busy",
    "Live workers that have reported on this upstream.",
    MetricSource.DATABASE,
    "upstream",
)
PROVIDER_ITEMS = _gauge(
    "provider_items",
    "Items that providers work on, or may have accepted without an answer.",
    MetricSource.DATABASE,
    "upstream",
    "state",
)

# Batches

OPEN_BATCHES = _gauge(
    "batchline_open_batches",
    "Batches that have not ended: in_progress, paused, stopped (paused by a rule, or after a sample),"
    " held (for an approval or a release), closing (cancelled or expired, and some lines are still in"
    " flight), finalizing.",
    MetricSource.DATABASE,
    "status",
)
OVERDUE_BATCHES = _gauge(
    "batchline_overdue_batches",
    "Batches past their deadline that no worker has closed yet.",
    MetricSource.DATABASE,
)
FINALIZING_AGE = _gauge(
    "batchline_finalizing_age_seconds",
    "How long the first batch has waited for its files since its last line ended; 0: none waits.",
    MetricSource.DATABASE,
)
FINALIZING_FAILED = _gauge(
    "batchline_finalizing_failed",
    "Batches whose files could not be written at the last try.",
    MetricSource.DATABASE,
)
MAINTENANCE_DELAY = _gauge(
    "batchline_maintenance_delay_seconds",
    "How long the work is overdue that any worker does besides lines and files: each maintenance task, steps"
    " of batches, actions on many batches, events, webhooks.",
    MetricSource.DATABASE,
    "task",
)
SCHEDULE_LAG = _gauge(
    "batchline_schedule_lag_seconds",
    "How long ago a time of this schedule of a Python app came that has become no batch yet; 0: none.",
    MetricSource.DATABASE,
    "schedule",
)

# The database

DEAD_ROWS = _gauge(
    "batchline_dead_rows",
    "Dead rows of the hot tables that vacuum has not removed, as the database estimates them.",
    MetricSource.DATABASE,
    "table",
)
LIVE_ROWS = _gauge("batchline_live_rows", "Live rows of the same tables.", MetricSource.DATABASE, "table")
SNAPSHOT_AGE = _gauge(
    "batchline_oldest_snapshot_seconds",
    "How long ago the transaction began whose snapshot keeps dead rows from being removed. Sessions of other"
    " roles count only if the role of Batchline is a member of pg_read_all_stats.",
    MetricSource.DATABASE,
)
SNAPSHOT_TRANSACTIONS = _gauge(
    "batchline_oldest_snapshot_transactions",
    "How many transactions have begun since the oldest snapshot, replication slots included.",
    MetricSource.DATABASE,
)
CONNECTIONS = _gauge(
    "batchline_database_connections",
    "Client connections of the database server: all of them, and those of Batchline.",
    MetricSource.DATABASE,
    "of",
)
CONNECTIONS_ALLOWED = _gauge(
    "batchline_database_connections_allowed", "max_connections of the database server.", MetricSource.DATABASE
)
READ_OK = _gauge(
    "batchline_metrics_read",
    "1 if this part of the database's metrics could be read at the last try, else 0; its metrics are missing"
    " then.",
    MetricSource.DATABASE,
    "part",
)

# Governed operations

CHILDREN = _counter(
    "batch_child_execution_total", "Children that have ended.", MetricSource.DATABASE, "batch_type", "status"
)
DURATIONS = MetricDefinition(
    "batch_parent_duration_seconds",
    "histogram",
    "From submission until no child was pending for the first time.",
    MetricSource.DATABASE,
    ("batch_type",),
)
SUBMITTED = _counter(
    "batch_submit_total", "Submissions by operation and result.", MetricSource.SERVER, "batch_type", "result"
)
LIMITED = _counter(
    "rate_limit_rejections_total", "Requests refused because of a limit.", MetricSource.SERVER, "limit_type"
)

# The server

HTTP_REQUESTS = MetricDefinition(
    "batchline_http_request_seconds",
    "histogram",
    "How long requests took, from the end of the head to the end of the answer. Status 0: no answer.",
    MetricSource.SERVER,
    ("method", "status"),
    _REQUEST,
)
POOL_IN_USE = _gauge(
    "batchline_pool_in_use", "Database connections of a pool that are in use.", MetricSource.SERVER, "pool"
)
POOL_SIZE = _gauge(
    "batchline_pool_size", "Database connections that a pool may have.", MetricSource.SERVER, "pool"
)
POOL_WAITING = _gauge(
    "batchline_pool_waiting", "Requests that wait for a connection of a pool.", MetricSource.SERVER, "pool"
)
POOL_REFUSED = _counter(
    "batchline_pool_refused_total",
    "Requests that got no connection of a pool in time.",
    MetricSource.SERVER,
    "pool",
)

# Workers

CLAIM_SECONDS = MetricDefinition(
    "batchline_claim_seconds",
    "histogram",
    "How long claims took, also those that found nothing.",
    MetricSource.WORKER,
    buckets=_STATEMENT,
)
SETTLE_SECONDS = MetricDefinition(
    "batchline_settle_seconds", "histogram", "How long settles took.", MetricSource.WORKER, buckets=_STATEMENT
)
CLAIMED = _counter(
    "batchline_items_claimed_total", "Items that this worker has claimed.", MetricSource.WORKER
)
ITEMS = _counter(
    "batchline_items_total",
    "Items that this worker has finished and stored: completed or failed.",
    MetricSource.WORKER,
    "upstream",
    "outcome",
)
RETRIES = _counter(
    "batchline_retries_total",
    "Attempts that failed and are followed by another, by error code.",
    MetricSource.WORKER,
    "upstream",
    "code",
)
UNSETTLED = _gauge(
    "batchline_unsettled_items", "Items whose outcome is known and not stored yet.", MetricSource.WORKER
)
SETTLE_PENDING = _gauge(
    "batchline_settle_pending_seconds",
    "How long the present settle has been tried, or since its last part was stored; 0: none is under way.",
    MetricSource.WORKER,
)
LEASE_LOSSES = _counter(
    "batchline_lease_losses_total",
    "How often this worker lost its lease and left its unsent items to others.",
    MetricSource.WORKER,
)
MAINTENANCE_FINDINGS = _counter(
    "batchline_maintenance_findings_total",
    "What maintenance found and repaired or removed.",
    MetricSource.WORKER,
    "kind",
)
UPSTREAM_IN_FLIGHT = _gauge(
    "batchline_upstream_in_flight",
    "Requests that were sent to this upstream and have no answer yet.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_LIMIT = _gauge(
    "batchline_upstream_limit",
    "Requests that may be in flight at this upstream now. With concurrency auto, of the models that are in"
    " use.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_MAX_LIMIT = _gauge(
    "batchline_upstream_max_limit",
    "Requests that may be in flight at this upstream at most.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_SIGNAL = _gauge(
    "batchline_upstream_limit_signal",
    "1 for what the limit follows now: as_set or lowered if it is a number; else starting, growing, knee,"
    " queues, refused, timed_out, slower, load, ceiling or idle. Of several models, the one with the most in"
    " flight counts.",
    MetricSource.WORKER,
    "upstream",
    "signal",
)
UPSTREAM_LATENCY = _gauge(
    "batchline_upstream_latency_seconds",
    "How long the last 512 answers took, as percentiles.",
    MetricSource.WORKER,
    "upstream",
    "percentile",
)
UPSTREAM_OLDEST = _gauge(
    "batchline_upstream_oldest_request_seconds",
    "How long ago the oldest request in flight was sent; 0: none is.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_REACHABLE = _gauge(
    "batchline_upstream_reachable",
    "0 while no connection to this upstream can be made, else 1. Missing if that was two minutes ago, and"
    " nobody has tried since.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_AVAILABLE = _gauge(
    "batchline_upstream_available",
    "0 while only single lines try this upstream, because no connection can be made or nothing but gateway"
    " errors (502, 503, 504) and lost connections come back; else 1. Missing if that was two minutes ago, and"
    " nobody has tried since.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_CRASHES = _counter(
    "batchline_upstream_crashes_total",
    "Crashes of this upstream while requests of this worker were in flight.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_SUSPECTS = _gauge(
    "batchline_upstream_suspects",
    "Lines in this worker that were in flight at a crash of this upstream, and wait or run again, few at a"
    " time.",
    MetricSource.WORKER,
    "upstream",
)
UPSTREAM_RATE_LIMITED = _gauge(
    "batchline_upstream_rate_limited",
    "1 while requests wait because this upstream answers 429, else 0.",
    MetricSource.WORKER,
    "upstream",
)
BUDGET_WAITING = _gauge(
    "batchline_budget_waiting_requests",
    "Requests to this upstream that wait in this worker for a budget per minute.",
    MetricSource.WORKER,
    "upstream",
)
BUDGET_WAIT = _gauge(
    "batchline_budget_wait_seconds",
    "Until this worker gets the next part of the budget that they wait for; 0: none waits.",
    MetricSource.WORKER,
    "upstream",
)

# Every process

LOOP_LAG = MetricDefinition(
    "batchline_event_loop_lag_seconds",
    "histogram",
    "How late the event loop ran a timer that was set twice per second.",
    MetricSource.PROCESS,
    buckets=_LAG,
)
BUILD = _gauge("batchline_build_info", "1, with the version as a label.", MetricSource.PROCESS, "version")

ALL = tuple(each for each in list(globals().values()) if isinstance(each, MetricDefinition))

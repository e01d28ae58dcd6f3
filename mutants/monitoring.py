"""Mistakes in metrics and in the demand of workers: wrong numbers, unbounded reads, secrets in labels."""

from mutants.mutant import Mutant

_SQL = "src/batchline/store/sql/monitoring"
_STORE = ("tests/store/test_monitoring.py",)
_API = ("tests/api/test_metrics.py",)
_LABELS = ("tests/unit/test_metric_labels.py",)
_DEMAND = ("tests/unit/test_demand.py",)
_METRICS = "src/batchline/metrics"

MONITORING = (
    Mutant(
        "a statement of a monitor may run for ever in the server",
        "src/batchline/store/monitoring.py",
        '                f" SET LOCAL statement_timeout = {round(self._server_limit * 1000)}"\n',
        "",
        _STORE,
    ),
    Mutant(
        "the limit of a monitor stays with the connection",
        "src/batchline/store/monitoring.py",
        "SET LOCAL statement_timeout",
        "SET statement_timeout",
        _STORE,
    ),
    Mutant(
        "a dead worker's report counts",
        f"{_SQL}/demand.sql",
        "    WHERE w.lease_until >= now()\n",
        "",
        _STORE,
    ),
    Mutant(
        "the required rate looks at one deadline at a time",
        f"{_SQL}/demand.sql",
        "sum(items) OVER (PARTITION BY upstream ORDER BY seconds_left)",
        "items",
        _STORE,
    ),
    Mutant(
        "lines that are to be tried again do not wait",
        f"{_SQL}/demand.sql",
        "    WHERE n.open AND n.deadline > now()\n",
        "    WHERE false\n",
        _STORE,
    ),
    Mutant(
        "batches of run demand workers",
        "src/batchline/store/monitoring.py",
        '[f"{RESERVED}%"]',
        "[]",
        _STORE,
    ),
    Mutant(
        "ended batches count as finalizing",
        f"{_SQL}/open_batches.sql",
        "    WHERE finalizing_at IS NOT NULL AND ended_at IS NULL\n",
        "    WHERE finalizing_at IS NOT NULL\n",
        _STORE,
    ),
    Mutant(
        "lines that a step holds back wait for a worker",
        f"{_SQL}/demand.sql",
        " AND s.available_at < '9999-12-31 00:00:00+00'\n",
        "\n",
        _STORE,
    ),
    Mutant(
        "a step that is due needs no worker",
        f"{_SQL}/maintenance_delays.sql",
        "min(next_step_at), coalesce(min(next_step_at) <= now(), false)\n",
        "min(next_step_at), false\n",
        _STORE,
    ),
    Mutant(
        "more workers are asked for although the upstream slows them down",
        f"{_METRICS}/demand.py",
        "    if upstream.limited:\n        needed = min(needed, busy)\n",
        "",
        _DEMAND,
    ),
    Mutant(
        "lines in flight need no worker",
        f"{_METRICS}/demand.py",
        "    lines = waiting + in_flight\n",
        "    lines = waiting\n",
        _DEMAND,
    ),
    Mutant(
        "an upstream's password is a label",
        f"{_METRICS}/labels.py",
        "    return public_url(urls.normalized(url))\n",
        "    return urls.normalized(url)\n",
        _LABELS,
    ),
    Mutant(
        "every name is a label of its own",
        f"{_METRICS}/labels.py",
        "len(self._more) >= self._maximum or ",
        "",
        _LABELS,
    ),
    Mutant(
        "of two upstreams with one label, the first is forgotten",
        f"{_METRICS}/exports.py",
        "value if before is None else self._combine(before, value)",
        "value",
        ("tests/unit/test_metric_exports.py",),
    ),
    Mutant(
        "every read asks the database again",
        f"{_METRICS}/database.py",
        "self._until = monotonic() + self._max_age",
        "self._until = monotonic()",
        _API,
    ),
    Mutant(
        "admins of any tenant see the work of all tenants",
        "src/batchline/api/metrics.py",
        "only = None if whole else OF_OPERATIONS",
        "only = None",
        _API,
    ),
    Mutant(
        "a key for monitoring may call every route",
        "src/batchline/api/routing.py",
        "if caller.role is Role.MONITOR and not self.for_monitors:",
        "if False:",
        ("tests/api/test_monitor_role.py",),
    ),
    Mutant(
        "the beginning of an id matches batches of all tenants",
        "src/batchline/store/sql/batches/match_batches.sql",
        "  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)\n",
        "",
        ("tests/store/test_batch_names.py", "tests/api/test_dashboard_attacks.py"),
    ),
)

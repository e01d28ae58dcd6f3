"""Write the Grafana dashboard from the panels below.

    python -m tools.grafana_dashboard

Every server reports the metrics of the whole database, so these are combined with max or min, not summed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "deploy/grafana/batchline.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 24, 8


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    help: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = _HEIGHT
    # Below or above this, the value is red.
    red_below: float | None = None
    red_above: float | None = None


def _all(expr: str, by: str = "") -> str:
    """A gauge of the whole database, which every server reports."""
    inner = f"sum by ({', '.join(filter(None, ('instance', by)))}) ({expr})"
    return f"max by ({by}) ({inner})" if by else f"max({inner})"


def _quantiles(name: str, by: str = "") -> tuple[Query, ...]:
    labels = ", ".join(filter(None, (by, "le")))
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket[5m])))", f"p{part}{legend}")
        for share, part in ((0.5, 50), (0.99, 99))
    )


def _stat(title: str, help: str, unit: str, expr: str, **more: Any) -> Panel:
    return Panel(title, help, unit, (Query(expr),), "stat", 4, 4, **more)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            _stat("Waiting", "Lines that no worker holds.", "short", _all("batchline_queue_items")),
            _stat("In flight", "As workers have reported.", "short", _all("batchline_in_flight")),
            _stat(
                "Finished",
                "Lines per second, as workers have reported.",
                "ops",
                _all("batchline_finish_rate"),
            ),
            _stat(
                "Tightest deadline",
                "Time that is left at the present rate. Negative: late.",
                "s",
                "min(batchline_deadline_margin_seconds)",
                red_below=0,
            ),
            _stat("Workers needed", "To meet all deadlines.", "short", "max(batchline_demand_workers)"),
            _stat(
                "Batches past their deadline",
                "Not closed yet.",
                "short",
                "max(batchline_overdue_batches)",
                red_above=0,
            ),
        ),
    ),
    (
        "Queue",
        (
            Panel(
                "Waiting lines",
                "Lines that no worker holds, by upstream and model.",
                "short",
                (Query("max by (upstream, model) (batchline_queue_items)", "{{upstream}} {{model}}"),),
            ),
            Panel(
                "Queue age",
                "How long the first line has waited, if nobody claims from its lane.",
                "s",
                (Query("max by (upstream) (batchline_queue_age_seconds)", "{{upstream}}"),),
            ),
            Panel(
                "Deadline margin",
                "Time that is left at the tightest deadline at the present rate.",
                "s",
                (Query("min by (upstream) (batchline_deadline_margin_seconds)", "{{upstream}}"),),
                red_below=0,
            ),
            Panel(
                "Rate and required rate",
                "Lines per second: finished now, and what all deadlines require.",
                "ops",
                (
                    Query(_all("batchline_finish_rate", "upstream"), "{{upstream}}"),
                    Query("max by (upstream) (batchline_required_rate)", "{{upstream}} required"),
                ),
            ),
            Panel(
                "Workers",
                "Busy, and needed to meet all deadlines.",
                "short",
                (
                    Query("max by (upstream) (batchline_workers_busy)", "{{upstream}} busy"),
                    Query("max by (upstream) (batchline_workers_needed)", "{{upstream}} needed"),
                ),
            ),
            Panel(
                "Open batches",
                "By what keeps them.",
                "short",
                (Query("max by (status) (batchline_open_batches)", "{{status}}"),),
            ),
        ),
    ),
    (
        "Upstreams",
        (
            Panel(
                "In flight and limit",
                "Of all workers. With concurrency auto, they find the limit by measuring.",
                "short",
                (
                    Query("sum by (upstream) (batchline_upstream_in_flight)", "{{upstream}}"),
                    Query("sum by (upstream) (batchline_upstream_limit)", "{{upstream}} limit"),
                    Query("sum by (upstream) (batchline_upstream_max_limit)", "{{upstream}} maximum"),
                ),
            ),
            Panel(
                "What the limit follows",
                "Workers by what sets their limit: a knee, refusals, time-outs, the ceiling, or a number.",
                "short",
                (
                    Query(
                        "sum by (upstream, signal) (batchline_upstream_limit_signal)",
                        "{{upstream}} {{signal}}",
                    ),
                ),
            ),
            Panel(
                "Latency",
                "Of the last answers, of the slowest worker; and the oldest request in flight.",
                "s",
                (
                    Query(
                        "max by (upstream, percentile) (batchline_upstream_latency_seconds)",
                        "{{upstream}} p{{percentile}}",
                    ),
                    Query(
                        "max by (upstream) (batchline_upstream_oldest_request_seconds)", "{{upstream}} oldest"
                    ),
                ),
            ),
            Panel(
                "Unavailable, crashed or refusing",
                "Workers that find it unavailable or cannot connect, crashes that they saw in 10 minutes, and"
                " workers that wait because of 429.",
                "short",
                (
                    Query("sum by (upstream) (1 - batchline_upstream_available)", "{{upstream}} unavailable"),
                    Query("sum by (upstream) (1 - batchline_upstream_reachable)", "{{upstream}} unreachable"),
                    Query(
                        "sum by (upstream) (increase(batchline_upstream_crashes_total[10m]))",
                        "{{upstream}} crashes",
                    ),
                    Query("sum by (upstream) (batchline_upstream_suspects)", "{{upstream}} suspects"),
                    Query("sum by (upstream) (batchline_upstream_rate_limited)", "{{upstream}} refusing"),
                ),
            ),
            Panel(
                "Finished lines",
                "Per second, by outcome.",
                "ops",
                (
                    Query(
                        "sum by (upstream, outcome) (rate(batchline_items_total[5m]))",
                        "{{upstream}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Retries",
                "Per second, by error code.",
                "ops",
                (
                    Query(
                        "sum by (upstream, code) (rate(batchline_retries_total[5m]))", "{{upstream}} {{code}}"
                    ),
                ),
            ),
            Panel(
                "Tasks of providers",
                "Items that providers work on, or may have accepted without an answer.",
                "short",
                (Query("max by (upstream, state) (provider_items)", "{{upstream}} {{state}}"),),
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel("Claims", "How long they take.", "s", _quantiles("batchline_claim_seconds")),
            Panel("Settles", "How long they take.", "s", _quantiles("batchline_settle_seconds")),
            Panel(
                "Claimed lines",
                "Per second and worker.",
                "ops",
                (Query("rate(batchline_items_claimed_total[5m])", "{{instance}}"),),
            ),
            Panel(
                "Answers not stored yet",
                "Items, and how long the present settle has been tried.",
                "short",
                (
                    Query("batchline_unsettled_items", "{{instance}} items"),
                    Query("batchline_settle_pending_seconds", "{{instance}} seconds"),
                ),
            ),
            Panel(
                "Lost leases",
                "In the last 30 minutes.",
                "short",
                (Query("increase(batchline_lease_losses_total[30m])", "{{instance}}"),),
            ),
            Panel(
                "Event loop lag",
                "Of servers and workers.",
                "s",
                _quantiles("batchline_event_loop_lag_seconds", "instance"),
            ),
        ),
    ),
    (
        "Batches and maintenance",
        (
            Panel(
                "Finalizing",
                "How long the first batch has waited for its files.",
                "s",
                (Query("max(batchline_finalizing_age_seconds)", "oldest"),),
            ),
            Panel(
                "Finalizing failed",
                "Batches whose files could not be written at the last try.",
                "short",
                (Query("max(batchline_finalizing_failed)", "batches"),),
                red_above=0,
            ),
            Panel(
                "Maintenance overdue",
                "By task.",
                "s",
                (Query("max by (task) (batchline_maintenance_delay_seconds)", "{{task}}"),),
            ),
            Panel(
                "Schedules late",
                "How long ago a time of a Python app's schedule came that has become no batch.",
                "s",
                (Query("max by (schedule) (batchline_schedule_lag_seconds)", "{{schedule}}"),),
            ),
            Panel(
                "Maintenance findings",
                "Repaired or removed in the last hour.",
                "short",
                (Query("sum by (kind) (increase(batchline_maintenance_findings_total[1h]))", "{{kind}}"),),
            ),
            Panel(
                "Dead rows",
                "Of the hot tables.",
                "short",
                (Query("max by (table) (batchline_dead_rows)", "{{table}}"),),
            ),
            Panel(
                "Oldest snapshot",
                "It keeps dead rows from being removed.",
                "s",
                (Query("max(batchline_oldest_snapshot_seconds)", "age"),),
            ),
        ),
    ),
    (
        "Server and database",
        (
            Panel(
                "Requests",
                "Per second, by status.",
                "ops",
                (Query("sum by (status) (rate(batchline_http_request_seconds_count[5m]))", "{{status}}"),),
            ),
            Panel("Request duration", "All requests.", "s", _quantiles("batchline_http_request_seconds")),
            Panel(
                "Pools",
                "Database connections in use, and requests that wait for one.",
                "short",
                (
                    Query("batchline_pool_in_use", "{{instance}} {{pool}} in use"),
                    Query("batchline_pool_size", "{{instance}} {{pool}} size"),
                    Query("batchline_pool_waiting", "{{instance}} {{pool}} waiting"),
                ),
            ),
            Panel(
                "Database connections",
                "Of the database server.",
                "short",
                (
                    Query("max by (of) (batchline_database_connections)", "{{of}}"),
                    Query("max(batchline_database_connections_allowed)", "allowed"),
                ),
            ),
            Panel(
                "Governed submissions",
                "Per second, by operation and result.",
                "ops",
                (
                    Query(
                        "sum by (batch_type, result) (rate(batch_submit_total[5m]))",
                        "{{batch_type}} {{result}}",
                    ),
                    Query(
                        "sum by (limit_type) (rate(rate_limit_rejections_total[5m]))",
                        "refused: {{limit_type}}",
                    ),
                ),
            ),
            Panel(
                "Governed children",
                "Ended per second, by operation and status.",
                "ops",
                (
                    Query(
                        "max by (batch_type, status) (rate(batch_child_execution_total[5m]))",
                        "{{batch_type}} {{status}}",
                    ),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    return {
        "uid": "batchline",
        "title": "Batchline",
        "tags": ["batchline"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                }
            ]
        },
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": position}
        )
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > _WIDTH:
                top, left = top + panel.height, 0
            panels.append(_panel(len(panels) + 1, panel, left, top))
            left += panel.width
        top += row[-1].height
    return panels


def _panel(number: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": _thresholds(panel)},
            },
            "overrides": [],
        },
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _thresholds(panel: Panel) -> list[dict[str, Any]]:
    if panel.red_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    if panel.red_above is not None:
        # A threshold includes its value.
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above + 1e-9}]
    return [{"color": "green", "value": None}]


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def rendered() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered())

"""The files in deploy/ for Prometheus, Grafana and KEDA fit the metrics that there are, and work."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchline.api.admin.demand import DemandObject, router
from batchline.api.server import listen
from batchline.metrics.definitions import ALL, MetricDefinition
from tests.support import external
from tests.support.processes import batchline, kill, simulated, start, write_requests
from tests.support.repository import ROOT
from tests.support.server_process import served
from tests.support.waiting import LIMIT, wait_for
from tools import grafana_dashboard, metrics_reference

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"

# What Prometheus adds to every series.
TARGET_LABELS = {"instance", "job"}
FUNCTIONS = {"and", "by", "histogram_quantile", "increase", "max", "min", "on", "or", "rate", "sum"}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def dashboard_queries() -> list[str]:
    panels = json.loads(grafana_dashboard.PAGE.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def keda_queries() -> list[str]:
    found = yaml.safe_load_all((DEPLOY / "keda" / "scaledobject-prometheus.yaml").read_text())
    return [trigger["metadata"]["query"] for each in found for trigger in each["spec"]["triggers"]]


def queries() -> list[str]:
    return [*(rule["expr"] for rule in alerts().values()), *dashboard_queries(), *keda_queries()]


def series() -> dict[str, MetricDefinition]:
    """Every name that a query may have."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {each.name + suffix: each for each in ALL for suffix in suffixes.get(each.kind, ("",))}


def parts(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels of a query."""
    without_texts = re.sub(r'"[^"]*"', '""', query)
    groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", without_texts)
    matchers = re.findall(r"\{([^}]*)\}", without_texts)
    labels = {label.strip() for group in groups for label in group.split(",") if label.strip()}
    labels |= {re.split("[=!~]", each)[0].strip() for matcher in matchers for each in matcher.split(",")}
    rest = re.sub(r"\b(?:by|on) \([^)]*\)|\{[^}]*\}|\[\w+\]", "", without_texts)
    return set(re.findall(r"\b[a-z_][a-z0-9_]*\b", rest)) - FUNCTIONS, labels


# What they name exists


@pytest.mark.parametrize("query", queries())
def test_every_metric_and_label_of_a_query_exists(query: str) -> None:
    names, labels = parts(query)
    assert names
    known = series()
    allowed = set(TARGET_LABELS)
    for name in names - {"up"}:
        assert name in known, f"there is no metric {name}"
        allowed |= {*known[name].labels, *(["le"] if name.endswith("_bucket") else [])}
    assert labels <= allowed, f"no metric of this query has these labels: {labels - allowed}"


def test_a_misspelt_metric_would_be_found() -> None:
    names, labels = parts('sum by (upstream, modell) (rate(batchline_item_total{outcome="x"}[5m])) > 0.2')
    assert names == {"batchline_item_total"}
    assert labels == {"upstream", "modell", "outcome"}


def test_the_dashboard_and_the_reference_are_up_to_date() -> None:
    assert grafana_dashboard.PAGE.read_text() == grafana_dashboard.rendered(), (
        "run python -m tools.grafana_dashboard"
    )
    page = metrics_reference.PAGE.read_text()
    assert metrics_reference.rendered(page) == page, "run python -m tools.metrics_reference"
    for each in ALL:
        assert f"| `{each.name}` |" in page


def test_panels_have_their_own_place_and_number() -> None:
    panels = json.loads(grafana_dashboard.PAGE.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_metrics_have_conventional_names() -> None:
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    for each in ALL:
        assert (each.kind == "counter") == each.name.endswith("_total"), each.name
        assert not {"tenant", "user", "batch", "batch_id", "custom_id", "key"} & set(each.labels)


def test_every_alert_has_its_section_in_the_runbook_and_every_section_its_alert() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(alerts())
    index = RUNBOOK.read_text().split("\n## ")[0]
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/how-to/runbook.md#{name.lower()}"
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        kind = "Pages" if rule["labels"]["severity"] == "page" else "Tickets"
        (listed,) = re.findall(rf"^- {kind}: (.*?)(?=^- |\Z)", index, re.MULTILINE | re.DOTALL)
        assert f"[{name}](#{name.lower()})" in listed


def test_the_keda_example_asks_for_what_the_server_answers() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "keda" / "scaledobject.yaml").read_text()))
    authentication, scaled = documents
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["valueLocation"] in DemandObject.model_fields
    assert urllib.parse.urlsplit(trigger["metadata"]["url"]).path == router.prefix
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert scaled["spec"]["maxReplicaCount"] > scaled["spec"]["minReplicaCount"]


# promtool agrees


def check(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [external.promtool(), *arguments], capture_output=True, text=True, timeout=LIMIT, check=False, cwd=cwd
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_promtool_accepts_the_configuration_and_the_rules(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    (tmp_path / "prometheus" / "batchline-monitor-key").write_text("bl-key")
    check("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml", cwd=tmp_path / "prometheus")
    check("check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))


def test_compose_scrapes_its_own_server_and_workers(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "prometheus.yml", tmp_path)
    shutil.copy(ALERTS, tmp_path)
    check("check", "config", "--lint=all", "--lint-fatal", "--syntax-only", "prometheus.yml", cwd=tmp_path)
    plain, more = (
        yaml.safe_load((DEPLOY / "compose" / name).read_text())
        for name in ("prometheus.yml", "monitoring.yaml")
    )
    server, worker = plain["scrape_configs"]
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    (secret,) = more["services"]["prometheus"]["secrets"]
    assert server["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert server["static_configs"] == [{"targets": ["server:8080"]}]
    (found,) = worker["dns_sd_configs"]
    assert found["names"] == ["worker"]
    assert str(found["port"]) == services["worker"]["environment"]["BATCHLINE_WORKER_METRICS_PORT"]
    assert {server["job_name"], worker["job_name"]} == {
        each["job_name"]
        for each in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    }
    source = yaml.safe_load((DEPLOY / "compose" / "grafana-datasource.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(dashboard_queries())]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in check("check", "rules", "--lint=none", str(path))


# Series that fire each alert, and series that do not. Values are one per minute, for an hour.
SERVER, WORKER = 'job="batchline-server",instance="s"', 'job="batchline-worker",instance="w"'


def _constant(value: float) -> str:
    return f"{value}x60"


def _growing(per_minute: float) -> str:
    return f"0+{per_minute}x60"


def _histogram(name: str, bound: str) -> dict[str, str]:
    """All observations lie just below this bound."""
    below = {"0.001": 0, bound: 60, "+Inf": 60}
    return {f'{name}_bucket{{{WORKER},le="{le}"}}': _growing(count) for le, count in below.items()}


def _items(upstream: str, completed: float, failed: float) -> dict[str, str]:
    labels = f'{WORKER},upstream="{upstream}"'
    return {
        f'batchline_items_total{{{labels},outcome="completed"}}': _growing(completed),
        f'batchline_items_total{{{labels},outcome="failed"}}': _growing(failed),
    }


def _retries(upstream: str, per_minute: float) -> dict[str, str]:
    return {
        f'batchline_retries_total{{{WORKER},upstream="{upstream}",code="http_500"}}': _growing(per_minute)
    }


def _queue(age: float, in_flight: float) -> dict[str, str]:
    labels = f'{SERVER},upstream="gpu",model="m"'
    return {
        f"batchline_queue_age_seconds{{{labels}}}": _constant(age),
        f"batchline_in_flight{{{labels}}}": _constant(in_flight),
    }


def _gauge(name: str, value: float, labels: str = SERVER) -> dict[str, str]:
    return {f"{name}{{{labels}}}": _constant(value)}


def _connections(used: float) -> dict[str, str]:
    return {
        **_gauge("batchline_database_connections", used, f'{SERVER},of="all"'),
        **_gauge("batchline_database_connections_allowed", 100),
    }


def _requests(errors: float) -> dict[str, str]:
    name = "batchline_http_request_seconds_count"
    return {
        f'{name}{{{SERVER},method="GET",status="200"}}': _growing(90),
        f'{name}{{{SERVER},method="GET",status="503"}}': _growing(errors),
    }


def _findings(kind: str) -> dict[str, str]:
    return {f'batchline_maintenance_findings_total{{{WORKER},kind="{kind}"}}': "0x30 1x30"}


CASES: Mapping[str, tuple[Sequence[Mapping[str, str]], Sequence[Mapping[str, str]]]] = {
    "BatchlineDown": (
        [_gauge("up", 0), _gauge("up", 0, WORKER)],
        [_gauge("up", 1), _gauge("up", 0, 'job="other",instance="x"'), {f"up{{{SERVER}}}": "1x57 0 0 0"}],
    ),
    "BatchlineNoProgress": ([_queue(3_600, 0)], [_queue(3_600, 5), _queue(60, 0)]),
    "BatchlineDeadlineAtRisk": (
        [_gauge("batchline_deadline_margin_seconds", -60, f'{SERVER},upstream="gpu"')],
        [_gauge("batchline_deadline_margin_seconds", 60, f'{SERVER},upstream="gpu"')],
    ),
    "BatchlineOverdueBatches": (
        [_gauge("batchline_overdue_batches", 2)],
        [_gauge("batchline_overdue_batches", 0), {f"batchline_overdue_batches{{{SERVER}}}": "0x55 1x5"}],
    ),
    "BatchlineBatchesStopped": (
        [_gauge("batchline_open_batches", 1, f'{SERVER},status="stopped"')],
        [_gauge("batchline_open_batches", 1, f'{SERVER},status="paused"')],
    ),
    "BatchlineFinalizingStuck": (
        [_gauge("batchline_finalizing_age_seconds", 3_600), _gauge("batchline_finalizing_failed", 1)],
        [{**_gauge("batchline_finalizing_age_seconds", 600), **_gauge("batchline_finalizing_failed", 0)}],
    ),
    "BatchlineAnswersNotStored": (
        [_gauge("batchline_settle_pending_seconds", 300, WORKER)],
        [_gauge("batchline_settle_pending_seconds", 0.5, WORKER)],
    ),
    "BatchlineUpstreamUnavailable": (
        [_gauge("batchline_upstream_available", 0, f'{WORKER},upstream="gpu"')],
        [
            {
                **_gauge("batchline_upstream_available", 0, f'{WORKER},upstream="gpu"'),
                **_gauge("batchline_upstream_available", 1, 'instance="w2",upstream="gpu"'),
            }
        ],
    ),
    "BatchlineManyFailures": ([_items("gpu", 70, 30)], [_items("gpu", 90, 10), _items("gpu", 0, 0)]),
    "BatchlineManyRetries": (
        [{**_items("gpu", 10, 0), **_retries("gpu", 90)}, {**_items("gpu", 0, 0), **_retries("gpu", 5)}],
        [{**_items("gpu", 90, 0), **_retries("gpu", 10)}],
    ),
    "BatchlineRepairedBatch": ([_findings("unfrozen_batches")], [_findings("garbage_objects")]),
    "BatchlineServerErrors": ([_requests(10)], [_requests(1)]),
    "BatchlinePoolExhausted": (
        [{f'batchline_pool_refused_total{{{SERVER},pool="api"}}': _growing(1)}],
        [{f'batchline_pool_refused_total{{{SERVER},pool="api"}}': _constant(5)}],
    ),
    "BatchlineLeaseLosses": (
        [{f"batchline_lease_losses_total{{{WORKER}}}": "0+0.2x60"}],
        [{f"batchline_lease_losses_total{{{WORKER}}}": "0x30 1x30"}],
    ),
    "BatchlineEventLoopBlocked": (
        [_histogram("batchline_event_loop_lag_seconds", "5.0")],
        [_histogram("batchline_event_loop_lag_seconds", "0.1")],
    ),
    "BatchlineSlowClaims": (
        [_histogram("batchline_claim_seconds", "5.0")],
        [_histogram("batchline_claim_seconds", "0.01")],
    ),
    "BatchlineSlowSettles": (
        [_histogram("batchline_settle_seconds", "30.0")],
        [_histogram("batchline_settle_seconds", "1.0")],
    ),
    "BatchlineOldSnapshot": (
        [_gauge("batchline_oldest_snapshot_seconds", 7_200)],
        [_gauge("batchline_oldest_snapshot_seconds", 600)],
    ),
    "BatchlineDeadRows": (
        [_gauge("batchline_dead_rows", 200_000, f'{SERVER},table="spans"')],
        [
            _gauge("batchline_dead_rows", 200_000, f'{SERVER},table="results"'),
            _gauge("batchline_dead_rows", 2_000, f'{SERVER},table="spans"'),
        ],
    ),
    "BatchlineConnectionsNearlyUsed": ([_connections(95)], [_connections(50)]),
    "BatchlineMaintenanceOverdue": (
        [_gauge("batchline_maintenance_delay_seconds", 3_600, f'{SERVER},task="sweep"')],
        [_gauge("batchline_maintenance_delay_seconds", 60, f'{SERVER},task="sweep"')],
    ),
    "BatchlineScheduleLate": (
        [_gauge("batchline_schedule_lag_seconds", 3_600, f'{SERVER},schedule="nightly"')],
        [_gauge("batchline_schedule_lag_seconds", 60, f'{SERVER},schedule="nightly"')],
    ),
    "BatchlineMetricsIncomplete": (
        [_gauge("batchline_metrics_read", 0, f'{SERVER},part="demand"')],
        [
            {
                **_gauge("batchline_metrics_read", 0, f'{SERVER},part="demand"'),
                **_gauge("batchline_metrics_read", 1, 'instance="s2",part="demand"'),
            }
        ],
    ),
}


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    tests = [
        _rule_test(name, given, fires=fires)
        for name, (firing, silent) in CASES.items()
        for fires, cases in ((True, firing), (False, silent))
        for given in cases
    ]
    path = tmp_path / "tests.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in check("test", "rules", str(path))


def _rule_test(name: str, given: Mapping[str, str], *, fires: bool) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{name} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in given.items()],
        "promql_expr_test": [
            {
                "expr": f'count(count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}}))',
                "eval_time": "1h",
                "exp_samples": expected,
            }
        ],
    }


# From the deploy folder to a graph and an alert


@contextmanager
def running_prometheus(folder: Path) -> Iterator[str]:
    """A real Prometheus with the configuration in this folder; its URL."""
    with listen("127.0.0.1", 0) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = folder / "prometheus.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                external.prometheus(),
                "--config.file=prometheus.yml",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            cwd=folder,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("Prometheus", lambda: process.poll() is not None or _ready(f"http://{address}/-/ready"))
        assert process.poll() is None, log.read_text()
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(LIMIT)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT):
            return True
    except OSError:
        return False


def _ask(url: str, path: str, **parameters: str) -> Any:
    text = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{text}", timeout=LIMIT) as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return found["data"]


def test_prometheus_with_these_files_shows_work_and_reports_a_worker_that_died(
    database_url: str, tmp_path: Path
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    folder = tmp_path / "prometheus"
    external.prometheus()
    with (
        simulated("--error-rate", "0.2", "--seed", "5") as upstream,
        served(database_url, tmp_path, "--upstream", upstream.url, "--no-worker") as server,
    ):
        worker = start("worker", "--metrics-port", "0", "--upstream", upstream.url, *location)
        try:
            assert worker.stdout is not None
            metrics = re.search(r"http://(\S+)/metrics", worker.stdout.readline())
            assert metrics
            made = batchline("keys", "create", "prometheus", "--role", "monitor", *location)
            _configure(folder, server.url.removeprefix("http://"), metrics[1], made.stdout.strip())
            with running_prometheus(folder) as url:
                done = batchline("submit", str(inputs), "--upstream", upstream.url, *location)
                assert done.returncode == 0, done.stderr

                def value(query: str) -> float | None:
                    found = _ask(url, "query", query=query)["result"]
                    return float(found[0]["value"][1]) if found else None

                wait_for("both targets", lambda: value("sum(up)") == 2)
                # A line whose five attempts all got an error has failed.
                finished = 'sum(batchline_items_total{outcome=~"completed|failed"})'
                wait_for("300 finished lines", lambda: value(finished) == 300)
                for query in dashboard_queries():
                    _ask(url, "query", query=query)
                wait_for("the demand", lambda: value("max(batchline_demand_workers)") is not None)
                wait_for("batches", lambda: value("max(batchline_overdue_batches)") is not None)
                targets = _ask(url, "targets")["activeTargets"]
                assert {target["lastError"] for target in targets} == {""}
                assert not [alert for alert in _ask(url, "alerts")["alerts"] if alert["state"] == "firing"]
                kill(worker)
                down = {"alertname": "BatchlineDown", "job": "batchline-worker"}
                wait_for(
                    "an alert",
                    lambda: any(
                        down.items() <= alert["labels"].items() for alert in _ask(url, "alerts")["alerts"]
                    ),
                )
        finally:
            kill(worker)


def _configure(folder: Path, server: str, worker: str, key: str) -> None:
    """The deployed files, with the targets of this test, and faster."""
    shutil.copytree(DEPLOY / "prometheus", folder)
    path = folder / "prometheus.yml"
    text = path.read_text().replace("127.0.0.1:8080", server).replace("127.0.0.1:9464", worker)
    path.write_text(text.replace("15s", "1s"))
    (folder / "batchline-monitor-key").write_text(key)

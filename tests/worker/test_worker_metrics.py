"""The metrics port of a worker: what it shows, to whom, and what it costs."""

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from batchline.api.server import listen
from batchline.batches import maintenance
from batchline.config.settings import ServerSettings, WorkerSettings
from batchline.files.objects import Objects
from batchline.governance.registry import Registry
from batchline.metrics import definitions
from batchline.metrics.database import DatabaseMetrics
from batchline.metrics.definitions import MetricSource
from batchline.metrics.labels import UpstreamNames
from batchline.metrics.page import database_text
from batchline.metrics.worker import WorkerMetrics
from batchline.model import Item, Retried, Verdict
from batchline.model.concurrency import DEFAULT_CEILING
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.limit_signal import Signal
from batchline.worker.producer import ProducerScope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, completed, failed, overrun, sql, until
from tests.support.executors import Answering
from tests.support.pgbouncer import pooled
from tests.support.processes import batchline, kill, simulated, start, stop, write_requests
from tests.support.server_process import served
from tests.support.serving import PATIENT
from tests.support.waiting import LIMIT, wait_for

NAMES = UpstreamNames(ServerSettings(), Registry())


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        text: bytes = answer.read()
        return text.decode()


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def complete_page(url: str) -> str | None:
    """The metrics of the database; None if a part could not be read in time."""
    text = get(url)
    return None if re.search(r"^batchline_metrics_read\{.*\} 0", text, re.MULTILINE) else text


@contextmanager
def measured(database: str, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker with a metrics port, and the URL of its metrics."""
    location = ("--database", database, "--data-dir", str(folder / "data"))
    process = start("worker", "--metrics-port", "0", *options, *location)
    try:
        assert process.stdout is not None
        found = re.search(r"metrics on (http://\S+/metrics)", process.stdout.readline())
        assert found, process.stderr and process.stderr.read()
        yield process, found[1]
    finally:
        kill(process)


def test_every_metric_of_a_worker_is_on_its_page_with_what_it_did(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", 200)
    with (
        simulated("--error-rate", "0.3", "--seed", "3") as upstream,
        measured(database_url, tmp_path, "--upstream", upstream.url) as (worker, url),
    ):
        done = batchline("submit", str(inputs), "--upstream", upstream.url, *location)
        assert done.returncode == 0, done.stderr
        completed = 'batchline_items_total{outcome="completed",upstream="default"}'
        wait_for("200 completed items", lambda: value(get(url), completed) == 200)
        lag = "batchline_event_loop_lag_seconds_count"
        wait_for("a measurement of the event loop", lambda: (value(get(url), lag) or 0) > 0)
        text = get(url)
        # On a slow machine, a part may take too long at first.
        database = wait_for("all parts of the page", lambda: complete_page(f"{url}/database"))
        assert get(url.replace("/metrics", "/healthz")) == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}/nothing")
        _, errors = stop(worker)
        assert worker.returncode == 0, errors
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for each in definitions.ALL:
        if each.source in (MetricSource.WORKER, MetricSource.PROCESS):
            assert kinds.get(each.name) == each.kind, each.name
        if each.source is MetricSource.DATABASE:
            assert re.search(rf"^# TYPE {each.name} {each.kind}$", database, re.MULTILINE), each.name
    assert (value(text, "batchline_items_claimed_total") or 0) >= 200
    assert (value(text, "batchline_claim_seconds_count") or 0) > 0
    assert (value(text, "batchline_settle_seconds_count") or 0) > 0
    retries = re.findall(r'^batchline_retries_total\{code="(\w+)",upstream="default"\} (\S+)$', text, re.M)
    assert {code for code, _ in retries} <= {"http_500", "http_503"}
    assert retries
    assert 1 <= (value(text, 'batchline_upstream_limit{upstream="default"}') or 0) <= DEFAULT_CEILING
    assert value(text, 'batchline_upstream_max_limit{upstream="default"}') == DEFAULT_CEILING
    signals = re.findall(
        r'^batchline_upstream_limit_signal\{signal="(\w+)",upstream="default"\} 1', text, re.M
    )
    assert len(signals) == 1
    assert signals[0] in {each.label for each in Signal} - {"as_set", "lowered"}
    assert value(text, 'batchline_upstream_reachable{upstream="default"}') == 1
    assert value(database, 'batchline_metrics_read{part="demand"}') == 1


def test_the_port_is_on_loopback_unless_the_operator_says_otherwise(
    database_url: str, tmp_path: Path
) -> None:
    def addresses(process: subprocess.Popen[str]) -> set[str]:
        found = psutil.Process(process.pid).net_connections("tcp4")
        return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}

    with measured(database_url, tmp_path) as (worker, url):
        assert urlsplit(url).hostname == "127.0.0.1"
        assert addresses(worker) == {"127.0.0.1"}
    with measured(database_url, tmp_path, "--metrics-host", "0.0.0.0") as (worker, _):
        assert addresses(worker) == {"0.0.0.0"}
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with start("worker", *location) as without:
        try:
            wait_for("a worker that polls", lambda: _connections(database_url, "batchline poll"))
            assert addresses(without) == set()
        finally:
            kill(without)


def test_scraping_a_worker_asks_the_database_nothing(database_url: str, tmp_path: Path) -> None:
    with measured(database_url, tmp_path) as (_, url):
        wait_for("a worker that polls", lambda: _connections(database_url, "batchline poll"))
        for _ in range(50):
            get(url)
        assert _connections(database_url, "batchline metrics") == 0
        get(f"{url}/database")
        assert _connections(database_url, "batchline metrics") == 1


def _connections(database: str, name: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            " AND datname = current_database()",
            (name,),
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_port_that_is_taken_ends_the_command_with_one_sentence(database_url: str, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        done = batchline("worker", "--metrics-port", port, "--database", database_url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --metrics-port: cannot listen on 127.0.0.1, port {port}")
    assert "0 for any free one" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_client_that_keeps_its_connection_does_not_keep_a_worker_from_leaving(
    database_url: str, tmp_path: Path
) -> None:
    with measured(database_url, tmp_path) as (worker, url):
        address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        with create_connection(address, LIMIT) as idle, create_connection(address, LIMIT) as half:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert idle.recv(1024).startswith(b"HTTP/1.1 200")
            half.sendall(b"GET /metr")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(LIMIT) == 0


# What is counted


class Mixed(Answering):
    """Line 1 is retried once, line 2 fails, the others are completed."""

    async def run(self, item: Item) -> Verdict:
        if item.line_no == 1 and item.claim.attempt == 1:
            return Retried(item, "strange_code", "again", 0.0)
        return failed(item) if item.line_no == 2 else completed(item)


async def test_items_retries_and_findings_are_counted(db: Session, database_url: str, tmp_path: Path) -> None:
    metrics = WorkerMetrics(NAMES, Upstreams())
    overdue = await a_batch(db, 1)
    await overrun(db, overdue.id)
    await a_batch(db, 5)
    objects, settings = Objects.at(tmp_path / "objects"), WorkerSettings(drain=True)
    worker = Worker(database_url, Mixed(), objects, settings, Scope(), WorkerOptions(observer=metrics))
    metrics.watch(worker)
    await worker.run()
    found = _samples(metrics)
    assert found['batchline_items_total{outcome="completed",upstream="other"}'] == 4
    assert found['batchline_items_total{outcome="failed",upstream="other"}'] == 1
    assert found['batchline_retries_total{code="strange_code",upstream="other"}'] == 1
    assert found[f'batchline_maintenance_findings_total{{kind="{maintenance.EXPIRED}"}}'] == 1
    assert found["batchline_items_claimed_total"] == 6
    assert found["batchline_unsettled_items"] == found["batchline_settle_pending_seconds"] == 0
    assert found["batchline_lease_losses_total"] == 0
    worker.lease.abandon()
    assert _samples(metrics)["batchline_lease_losses_total"] == 1


def _samples(metrics: WorkerMetrics) -> dict[str, float]:
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = ",".join(f'{name}="{text}"' for name, text in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_a_busy_worker_reports_its_load_with_its_heartbeats(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    """Real heartbeats of a worker that has an item in flight."""
    import asyncio

    class Stuck(Answering):
        go_on = asyncio.Event()

        async def run(self, item: Item) -> Verdict:
            await self.go_on.wait()
            return await super().run(item)

    await a_batch(db, {"small": 3})
    executor = Stuck()
    settings = WorkerSettings(drain=True, lease=1.0, concurrency=8)
    worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), settings, Scope())
    running = asyncio.create_task(worker.run())

    async def reported() -> bool:
        rows = await sql(db, "SELECT loads FROM batchline.worker_reports")
        return any(
            load["key"] == "small"
            and load["in_flight"] == 3
            and load["limited"] is False
            and (load["limit"], load["signal"]) == (8, "as_set")
            for (loads,) in rows
            for load in loads
        )

    async with asyncio.timeout(LIMIT):
        await until(reported)
        executor.go_on.set()
        await running
    assert await sql(db, "SELECT * FROM batchline.worker_reports") == []


async def test_a_producer_is_slowed_while_its_upstream_refuses_or_answers_too_late(tmp_path: Path) -> None:
    upstreams = Upstreams()
    upstream = upstreams.get("http://127.0.0.1:9/v1", 8)
    options = WorkerOptions(producers=[ProducerScope(Scope(), 8, upstream.url)], upstreams=upstreams)
    objects = Objects.at(tmp_path / "objects")
    worker = Worker("postgresql://nowhere", Answering(), objects, WorkerSettings(), Scope(), options)
    (producer,) = worker.producers
    assert not producer.slowed
    upstream.unreached(0.0, "no route")
    assert producer.slowed
    upstream.reached()
    assert not producer.slowed
    # As after time-outs.
    upstream.limit.value = 4
    assert producer.slowed


def test_the_worker_of_serve_has_the_port_of_the_settings(database_url: str, tmp_path: Path) -> None:
    with served(database_url, tmp_path, BATCHLINE_WORKER_METRICS_PORT="0") as server:
        pattern = re.compile(r"serving metrics.*(http://127\.0\.0\.1:\d+/metrics)")

        def url() -> str | None:
            found = pattern.search("".join(server.complained))
            return None if found is None else found[1]

        wait_for("a metrics port", url)
        assert "batchline_build_info" in get(url() or "")


async def test_the_page_of_an_unreachable_database_says_so() -> None:
    with listen("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    database = DatabaseMetrics(f"postgresql://127.0.0.1:{port}/none", NAMES)
    text = (await database_text(database)).decode()
    await database.close()
    assert value(text, 'batchline_metrics_read{part="demand"}') == 0
    assert "batchline_queue_items" not in text


async def test_metrics_are_read_through_a_transaction_pooler_and_leave_nothing_behind(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    """All clients share one connection to the database."""
    await a_batch(db, {"small": 3})
    with pooled(database_url, tmp_path / "pgbouncer", "default_pool_size = 1\n") as pooler:
        database = DatabaseMetrics(pooler, NAMES, PATIENT)
        async with Session(pooler, "test") as other:
            for _ in range(2):
                text = (await database_text(database)).decode()
                assert 'batchline_queue_items{model="small",upstream="other"} 3.0' in text
                parts = re.findall(r"^batchline_metrics_read\{.*\} (\S+)$", text, re.MULTILINE)
                assert set(parts) == {"1.0"}
                assert await sql(other, "SHOW statement_timeout") == [("0",)]
                assert await sql(other, "SHOW transaction_read_only") == [("off",)]
        await database.close()

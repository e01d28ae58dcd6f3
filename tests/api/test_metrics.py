"""/metrics and /api/v1/demand: what they show, to whom, and what reading them costs."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from batchline.api.app import create_app
from batchline.api.context import ApiContext
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.files.objects import Objects
from batchline.metrics import definitions
from batchline.metrics.database import ReadLimits
from batchline.metrics.definitions import MetricSource
from batchline.model import KeyLoad, Role
from batchline.store import spans
from batchline.store.pool import Sessions
from batchline.store.session import Session, StoreUnavailable
from tests.support.builders import a_batch, a_worker, on
from tests.support.operations_client import SETTINGS
from tests.support.serving import PATIENT, Server, serving
from tests.support.waiting import eventually

GPU = UpstreamSettings("gpu", "http://user:hunter2@127.0.0.1:9/v1", models=("small",))
REST = UpstreamSettings("rest", "http://127.0.0.1:9/other")
UPSTREAMS = ServerSettings(upstreams=(GPU, REST), sessions=4, streams=2)


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with serving(database_url, tmp_path, UPSTREAMS) as running:
        yield running


def metrics(server: Server, key: str | None = None) -> str:
    with server.http(key or server.key(role=Role.MONITOR)) as http:
        answer = http.get("/metrics")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text


def value(text: str, series: str) -> float:
    """Of one series, as its labels are written."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    assert found, f"{series} is not in\n{text}"
    return float(found[1])


async def some_work(db: Session) -> None:
    """30 lines for `small`, 5 for a model that no upstream names; one worker works on `small`."""
    await a_batch(db, {"small": 30, "unlisted": 5}, window=3600.0)
    await spans.renew(db, a_worker(), [KeyLoad("small", "small", 12, 0.004, False)])


def test_every_metric_of_the_server_and_the_database_is_there(server: Server) -> None:
    on(server.database, some_work)
    text = metrics(server)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for each in definitions.ALL:
        if each.source is not MetricSource.WORKER:
            assert kinds.get(each.name) == each.kind, each.name


def test_the_queue_the_demand_and_the_margin_of_each_upstream_are_shown(server: Server) -> None:
    on(server.database, some_work)
    text = metrics(server)
    small = '{model="small",upstream="gpu"}'
    assert value(text, f"batchline_queue_items{small}") == 30
    assert value(text, f"batchline_in_flight{small}") == 12
    assert value(text, f"batchline_finish_rate{small}") == 0.004
    assert value(text, 'batchline_queue_items{model="unlisted",upstream="rest"}') == 5
    # 42 lines take 10,500 s at this rate, and an hour is left.
    assert value(text, 'batchline_deadline_margin_seconds{upstream="gpu"}') == pytest.approx(-6_900, abs=60)
    assert value(text, 'batchline_workers_needed{upstream="gpu"}') == 3
    assert value(text, 'batchline_workers_needed{upstream="rest"}') == 1
    assert value(text, "batchline_demand_workers") == 3
    assert value(text, 'batchline_open_batches{status="in_progress"}') == 1
    assert value(text, 'batchline_metrics_read{part="demand"}') == 1
    assert "hunter2" not in text


def test_the_demand_lists_upstreams_with_their_models(server: Server) -> None:
    on(server.database, some_work)
    with server.http(server.key(role=Role.MONITOR)) as http:
        found = http.get("/api/v1/demand").json()
        assert http.get("/api/v1/demand?tenant=x").status_code == 400
    assert (found["workers_needed"], found["truncated"]) == (3, False)
    gpu, rest = found["upstreams"]
    assert (gpu["upstream"], gpu["waiting"], gpu["in_flight"], gpu["rate"]) == ("gpu", 30, 12, 0.004)
    assert (gpu["workers_busy"], gpu["workers_needed"], gpu["limited"]) == (1, 3, False)
    assert gpu["required_rate"] == pytest.approx(42 / 3600, rel=0.05)
    assert gpu["deadline_margin_seconds"] == pytest.approx(-6_900, abs=60)
    assert [model["model"] for model in gpu["models"]] == ["small"]
    assert gpu["models"][0]["next_deadline_seconds"] == pytest.approx(3600, abs=60)
    assert (rest["upstream"], rest["models"][0]["model"], rest["models"][0]["waiting"]) == (
        "rest",
        "unlisted",
        5,
    )


def test_an_upstream_that_a_batch_names_is_shown_without_its_password(server: Server) -> None:
    async def work(db: Session) -> None:
        for password in ("hunter3", "hunter4"):
            await a_batch(db, 7, upstream=f"https://me:{password}@cloud.example/v1")

    on(server.database, work)
    text = metrics(server)
    # Two URLs with the same label are one sample: Prometheus refuses a page with two.
    assert value(text, 'batchline_queue_items{model="model",upstream="https://cloud.example/v1"}') == 14
    with server.http(server.key(role=Role.MONITOR)) as http:
        answer = http.get("/api/v1/demand")
    assert [each["upstream"] for each in answer.json()["upstreams"]] == ["https://cloud.example/v1"] * 2
    assert "hunter" not in text + answer.text


def test_only_monitors_and_operators_see_the_work_of_all_tenants(server: Server) -> None:
    on(server.database, some_work)
    for role in (Role.USER, Role.APPROVER):
        with server.http(server.key(role=role)) as http:
            for path in ("/metrics", "/api/v1/demand"):
                answer = http.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    with server.http() as nobody:
        assert nobody.get("/metrics").status_code == nobody.get("/api/v1/demand").status_code == 401
    for role in (Role.MONITOR, Role.OPERATOR):
        key = server.key("acme", role)
        assert 'model="unlisted"' in metrics(server, key)
        with server.http(key) as http:
            assert http.get("/api/v1/demand").json()["workers_needed"] == 3


@pytest.mark.parametrize("tenant", ["default", "acme"])
def test_admins_of_no_tenant_see_the_work_of_others(server: Server, tenant: str) -> None:
    on(server.database, some_work)
    admin = server.key(tenant, Role.ADMIN)
    with server.http(admin) as http:
        answer = http.get("/api/v1/demand")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    text = metrics(server, admin)
    assert "unlisted" not in text
    assert "batchline_queue_items" not in text
    assert "batch_child_execution_total" in text
    assert "batchline_pool_size" in text


def test_a_server_without_keys_shows_the_work_of_all_tenants(database_url: str, tmp_path: Path) -> None:
    on(database_url, some_work)
    settings = replace(UPSTREAMS, authentication=False)
    with serving(database_url, tmp_path, settings) as server, server.http() as http:
        assert 'model="unlisted"' in http.get("/metrics").text
        assert http.get("/api/v1/demand").json()["workers_needed"] == 3


def test_requests_are_counted_by_method_and_status(server: Server) -> None:
    with server.http(server.key(role=Role.ADMIN)) as http:
        http.get("/v1/batches")
        http.get("/v1/batches/batch_x")
        http.request("PROPFIND", "/v1/batches")
        text = http.get("/metrics").text
    assert value(text, 'batchline_http_request_seconds_count{method="GET",status="200"}') == 1
    assert value(text, 'batchline_http_request_seconds_count{method="GET",status="404"}') == 1
    assert "PROPFIND" not in text
    assert value(text, 'batchline_http_request_seconds_count{method="other",status="405"}') == 1


def test_a_scrape_uses_no_connection_of_the_pool_but_for_its_key(server: Server) -> None:
    text = metrics(server)
    assert value(text, 'batchline_pool_size{pool="api"}') == 4
    assert value(text, 'batchline_pool_size{pool="stream"}') == 2
    assert value(text, 'batchline_pool_in_use{pool="api"}') == 0


# A statement that waits for a lock costs a test so long; any other has so long on a slow machine.
BOUNDED = replace(PATIENT, statement=10.0)


def test_a_statement_that_takes_too_long_costs_its_part_of_the_page_and_nothing_else(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, UPSTREAMS, metrics=BOUNDED) as server:
        key = server.key(role=Role.MONITOR)
        with psycopg.connect(database_url) as holder:
            # Even readers wait for this lock.
            holder.execute("LOCK TABLE batchline.maintenance_tasks IN ACCESS EXCLUSIVE MODE")
            text = metrics(server, key)
            holder.rollback()
        later = metrics(server, key)
    assert value(text, 'batchline_metrics_read{part="maintenance"}') == 0
    assert "\nbatchline_maintenance_delay_seconds{" not in text
    assert value(text, 'batchline_metrics_read{part="batches"}') == 1
    assert "\nbatchline_demand_workers" not in text, "it would be too small"
    assert value(text, 'batchline_metrics_read{part="rows"}') == 1
    assert value(text, 'batchline_metrics_read{part="providers"}') == 1, "also what is read after it"
    assert value(later, 'batchline_metrics_read{part="maintenance"}') == 1
    assert value(later, "batchline_demand_workers") == 0


def test_a_page_ends_although_every_statement_takes_too_long(database_url: str, tmp_path: Path) -> None:
    limits = replace(PATIENT, statement=0.5, page=0.0)
    with serving(database_url, tmp_path, UPSTREAMS, metrics=limits) as server:
        key = server.key(role=Role.MONITOR)
        with psycopg.connect(database_url) as holder:
            holder.execute("LOCK TABLE batchline.batches IN ACCESS EXCLUSIVE MODE")
            text = metrics(server, key)
            holder.rollback()
    read = dict(re.findall(r'^batchline_metrics_read\{part="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert len(read) == 10
    assert set(read.values()) == {"0.0"}


def test_a_demand_that_cannot_be_read_is_a_503(database_url: str, tmp_path: Path) -> None:
    with (
        serving(database_url, tmp_path, UPSTREAMS, metrics=BOUNDED) as server,
        server.http(server.key(role=Role.MONITOR)) as http,
        psycopg.connect(database_url) as holder,
    ):
        holder.execute("LOCK TABLE batchline.lanes IN ACCESS EXCLUSIVE MODE")
        answer = http.get("/api/v1/demand")
        holder.rollback()
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert http.get("/api/v1/demand").status_code == 200


async def test_what_was_read_is_used_again_for_some_seconds(database_url: str, tmp_path: Path) -> None:
    """However many ask, and whatever happens meanwhile."""
    assert ReadLimits().max_age >= 5.0
    sessions = Sessions(database_url)
    objects = Objects.at(tmp_path / "objects")
    context = ApiContext(sessions, objects, database_url, SETTINGS, metrics=replace(PATIENT, max_age=3600.0))
    database = create_app(context).state.database_metrics
    try:
        before = await database.demand()
        async with Session(database_url, "test") as db:
            await a_batch(db)
        assert await database.demand() is before
    finally:
        await database.close()
        await sessions.close()


async def test_a_pool_counts_who_uses_it_who_waits_and_who_got_nothing(database_url: str) -> None:
    sessions = Sessions(database_url, maximum=1, patience=0.01)

    def usage() -> tuple[int, int, int]:
        pool, _ = sessions.usage()
        return pool.in_use, pool.waiting, pool.refused

    async with sessions.one():
        assert usage() == (1, 0, 0)
        with pytest.raises(StoreUnavailable):
            async with sessions.one():
                pass
        assert usage() == (1, 0, 1)
    assert usage() == (0, 0, 1)
    patient = Sessions(database_url, maximum=1, patience=60.0)

    async def use() -> None:
        async with patient.one():
            return

    async with patient.one():
        waiting = asyncio.create_task(use())
        await eventually("a request that waits", lambda: patient.usage()[0].waiting == 1)
    await waiting
    assert patient.usage()[0].waiting == 0
    await sessions.close()
    await patient.close()

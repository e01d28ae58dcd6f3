"""An action on all matching batches is on those that the list with the same filter has, and on no others."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from batchline.model import Role, ids
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, failed, finalize, on, sql, take
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, submit
from tests.support.page_client import DASHBOARD
from tests.support.scenes import database
from tests.support.serving import Server, serving

FILTERS: list[dict[str, Any]] = [
    {},
    *({"status": [status]} for status in ("in_progress", "paused", "completed", "cancelled", "validating")),
    {"status": ["paused", "completed"]},
    *({"kind": kind} for kind in ("batch", "operation")),
    *({"model": model} for model in ("small", "large", "none")),
    *({"q": words} for words in ("SMALL", "large", "resize", "lines", "quarterly", "no such word", "%")),
    {"kind": "batch", "status": ["in_progress"], "model": "small"},
    {"created_after": "2030-01-01T00:00:00Z"},
    {"created_before": "2030-01-01T00:00:00Z"},
    {"created_after": "2020-01-01T00:00:00Z", "q": "small"},
]


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def tenant(server: Server) -> Tenant:
    """With batches of many kinds."""
    tenant = Tenant(server)
    with tenant.caller("anna") as anna, tenant.caller("bert") as bert:
        submit(anna)
        submit(bert)

    async def scenario(db: Session) -> None:
        small = await a_batch(db, {"small": 2}, tenant=tenant.name)
        both = await a_batch(db, {"small": 1, "large": 1}, tenant=tenant.name)
        await sql(
            db,
            "UPDATE batchline.batches SET metadata = %(m)s WHERE id = %(id)s",
            m='{"report": "Quarterly"}',
            id=both.id,
        )
        paused = await a_batch(db, {"large": 2}, tenant=tenant.name)
        assert await batches.close(db, paused.id, "pause")
        ended = await a_batch(db, {"small": 1}, tenant=tenant.name)
        worker = a_worker()
        (item,) = await take(db, worker, 1, spans.Scope(batch_id=ended.id))
        await spans.settle(db, worker.id, [failed(item)])
        await finalize(db, worker, ended)
        assert await batches.close(db, small.id, "cancel")
        await batches.conclude(db, small.id)

    on(server.database, scenario)
    return tenant


def listed(http: httpx2.Client, wanted: dict[str, Any]) -> int:
    params = {name: ",".join(value) if name == "status" else value for name, value in wanted.items()}
    answer = http.get(f"{DASHBOARD}/batches", params={**params, "limit": 100})
    assert answer.status_code == 200, answer.text
    return len(answer.json()["data"])


def matching(http: httpx2.Client, wanted: dict[str, Any]) -> int:
    answer = http.post(f"{DASHBOARD}/actions", json={"action": "pause", "filter": wanted, "preview": True})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["matching"])


@pytest.mark.parametrize("role", [Role.ADMIN, Role.USER])
def test_an_action_matches_what_its_filter_lists(server: Server, tenant: Tenant, role: Role) -> None:
    numbers = set[int]()
    with server.http(server.key(tenant.name, role, "anna" if role is Role.USER else "otto")) as http:
        every = http.get(f"{DASHBOARD}/batches").json()["data"]
        first = every[0]["id"]
        for wanted in (*FILTERS, {"q": first}, {"q": first[: len(ids.BATCH) + 20]}):
            found = listed(http, wanted)
            assert matching(http, wanted) == found, wanted
            numbers.add(found)
    assert {0, 1, 2, len(every)} <= numbers, "the filters tell batches apart"

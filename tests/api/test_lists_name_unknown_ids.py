"""In every list, a page after what is not there, or is another tenant's, is a 404 that names `after`."""

from collections.abc import Iterator

import pytest

from batchline.model import Role, ids
from batchline.model.ids import new_id
from batchline.store.session import Session
from tests.support.builders import a_batch, on, sql
from tests.support.governance import items
from tests.support.operations_client import REGISTRY, SETTINGS
from tests.support.scenes import database
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


LISTS = {
    "/v1/files": ids.FILE,
    "/v1/batches": ids.BATCH,
    "/v1/webhook_endpoints": ids.WEBHOOK,
    "/v1/webhook_endpoints/{webhook}/deliveries": ids.EVENT,
    "/api/v1/batches": ids.BATCH,
}


async def a_webhook(db: Session, tenant: str) -> str:
    """With one delivery."""
    webhook_id, event_id = new_id(), new_id()
    await sql(
        db,
        """
        WITH webhook AS (
            INSERT INTO batchline.webhooks (id, tenant, name, url, events, secret)
            VALUES (%(id)s, %(tenant)s, 'x', 'https://example.com', '{batch.completed}', 'whsec_x')
        )
        INSERT INTO batchline.deliveries (webhook_id, event_id, batch_id, type, occurred_at)
        VALUES (%(id)s, %(event)s, %(event)s, 'batch.completed', now())
        """,
        id=webhook_id,
        tenant=tenant,
        event=event_id,
    )
    return f"{ids.show(ids.WEBHOOK, webhook_id)} {ids.show(ids.EVENT, event_id)}"


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("unknown", ["nonsense", "%00", "{new}"])
def test_an_unknown_id_is_not_found(server: Server, path: str, unknown: str) -> None:
    webhook, _ = on(server.database, lambda db: a_webhook(db, "acme")).split()
    after = unknown.replace("{new}", ids.show(LISTS[path], new_id()))
    with server.http(server.key("acme", Role.ADMIN)) as http:
        answer = http.get(f"{path.format(webhook=webhook)}?after={after}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after"), answer.text


def test_another_tenants_ids_are_not_found_either(server: Server) -> None:
    async def others(db: Session) -> dict[str, str]:
        batch = await a_batch(db, 1, tenant="other")
        webhook, event = (await a_webhook(db, "other")).split()
        mine, _ = (await a_webhook(db, "acme")).split()
        return {
            "/v1/files": ids.show(ids.FILE, batch.file_id),
            "/v1/batches": ids.show(ids.BATCH, batch.id),
            "/v1/webhook_endpoints": webhook,
            f"/v1/webhook_endpoints/{mine}/deliveries": event,
        }

    found = on(server.database, others)
    with server.http(server.key("other", Role.ADMIN)) as http:
        body = {"items": items(1)}
        governed = http.post("/api/v1/operations/resize/batches", json=body).json()["batch_id"]
        assert http.get(f"/api/v1/batches?after={governed}").status_code == 200
    with server.http(server.key("acme", Role.ADMIN)) as http:
        for path, after in {**found, "/api/v1/batches": governed}.items():
            answer = http.get(f"{path}?after={after}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after"), path


def test_a_list_continues_after_a_delivery(server: Server) -> None:
    webhook, event = on(server.database, lambda db: a_webhook(db, "acme")).split()
    with server.http(server.key("acme")) as http:
        answer = http.get(f"/v1/webhook_endpoints/{webhook}/deliveries?after={event}")
    assert (answer.status_code, answer.json()["data"]) == (200, [])

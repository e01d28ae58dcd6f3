"""Every route with an id in its path, called with an id of another tenant or of another user's operation: it
answers that there is none, and changes nothing."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from batchline.model import Role
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, submit
from tests.support.page_client import DASHBOARD
from tests.support.routes import routes
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.uploading import requests

# Bodies with which the owner's request would be valid. All other requests have none.
BODIES: dict[str, Any] = {
    "/api/v1/batches/{batch_id}/append": {"items": [{"vm_id": "1", "size": 1}]},
    "/api/v1/batches/{batch_id}/reject": {"reason": "no"},
    "/api/v1/batches/{batch_id}/approve": {},
    "/api/v1/dashboard/batches/{batch_id}": {"priority": 5},
    "/v1/uploads/{upload_id}/complete": {"part_ids": []},
    "/v1/webhook_endpoints/{webhook_endpoint_id}": {"name": "mine"},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": {},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test": {"event_type": "batch.completed"},
}
QUERIES = {"download": "?which=failed&format=jsonl", "attempts": "?custom_id=1"}
# Other things that paths name: an act, and the first line.
OTHER = {"act": "cancel", "line": "1"}


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


def attempts(folder: Path, known: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Calls of all routes whose path has one of these ids."""
    for method, path in routes(folder):
        named = re.findall(r"{(\w+)", path)
        if set(named) & set(known):
            filled = re.sub(r"{(\w+)[^}]*}", lambda found: {**OTHER, **known}[found[1]], path)
            yield (
                method,
                filled + QUERIES.get(path.rpartition("/")[2], ""),
                BODIES.get(path) if method != "GET" else None,
            )


def owned(server: Server, tenant: Tenant) -> dict[str, str]:
    """One of each kind, of a user of the tenant."""
    with server.http(server.key(tenant.name, name="anna")) as anna:
        file = {"file": ("a.jsonl", requests(3))}
        file_id = _made(anna.post("/v1/files", files=file, data={"purpose": "batch"}))
        batch = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        requested = {"filename": "a.jsonl", "purpose": "batch", "bytes": 10, "mime_type": "application/jsonl"}
        hook = {"name": "hook", "url": "https://192.0.33.8/hook", "event_types": ["batch.completed"]}
        filters = {"action": "priority", "value": 3, "filter": {"status": "failed"}}
        return {
            "file_id": file_id,
            "batch_id": _made(anna.post("/v1/batches", json=batch)),
            "upload_id": _made(anna.post("/v1/uploads", json=requested)),
            "webhook_endpoint_id": _made(anna.post("/v1/webhook_endpoints", json=hook)),
            "action_id": _made(anna.post(f"{DASHBOARD}/actions", json=filters)),
        }


def _made(answer: httpx2.Response) -> str:
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def log_of(server: Server, tenant: str) -> list[Any]:
    with server.http(server.key(tenant, Role.ADMIN, "auditor")) as http:
        entries = http.get(f"{DASHBOARD}/audit", params={"limit": 100}).json()["data"]
    return [(each["actor"], each["action"]) for each in entries if each["action"] != "key.created"]


def test_ids_of_another_tenant_are_not_found(server: Server, tmp_path: Path) -> None:
    tenant = Tenant(server)
    known = owned(server, tenant)
    with tenant.caller("anna") as anna:
        governed = str(submit(anna, operation="wipe")["batch_id"])
    before = log_of(server, tenant.name)
    tried = 0
    with server.http(server.key("mallory", Role.ADMIN)) as http:
        for ids in (known, {"batch_id": governed}):
            for method, path, body in attempts(tmp_path, ids):
                answer = http.request(method, path, json=body)
                assert answer.status_code == 404, (method, path, answer.text)
                tried += 1
        watch = f"{DASHBOARD}/batches?q={known['batch_id']}"
        assert http.get(watch).json()["data"] == []
    assert tried > 40
    assert log_of(server, tenant.name) == before


def test_operations_of_another_user_are_not_found(server: Server, tmp_path: Path) -> None:
    tenant = Tenant(server)
    with tenant.caller("anna") as anna:
        governed = str(submit(anna, operation="wipe")["batch_id"])
    before = log_of(server, tenant.name)
    with server.http(server.key(tenant.name, Role.USER, "bert")) as http:
        for method, path, body in attempts(tmp_path, {"batch_id": governed}):
            answer = http.request(method, path, json=body)
            assert answer.status_code == 404, (method, path, answer.text)
    assert log_of(server, tenant.name) == before

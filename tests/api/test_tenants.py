"""Quotas, usage and erasure over HTTP, with the official client where it has a call for it."""

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from batchline.governance import tenants as governed
from batchline.model import Role
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, finalize, on, run_to_the_end, sql
from tests.support.objects import keys as object_keys
from tests.support.operations_client import REGISTRY, SETTINGS
from tests.support.raw_http import spoken
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.tenants import OPERATOR
from tests.support.uploading import requests

DATA = requests(10)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


@pytest.fixture
def operator(server: Server) -> Iterator[httpx2.Client]:
    with server.http(server.key("ops", Role.OPERATOR)) as http:
        yield http


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    with server.client(tenant_of(request)) as client:
        yield client


def tenant_of(request: pytest.FixtureRequest) -> str:
    """Each test has its own."""
    return f"tenant-{abs(hash(request.node.name))}"


@pytest.fixture
def tenant(request: pytest.FixtureRequest, client: openai.OpenAI) -> str:
    return tenant_of(request)


def set_quota(operator: httpx2.Client, tenant: str, max_bytes: int | None) -> dict[str, Any]:
    answer = operator.put(f"/api/v1/admin/tenants/{tenant}/quota", json={"max_bytes": max_bytes})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stored(operator: httpx2.Client, tenant: str) -> int:
    size = operator.get(f"/api/v1/admin/tenants/{tenant}").json()["bytes_stored"]
    assert isinstance(size, int)
    return size


# Quotas


def test_an_upload_that_does_not_fit_is_refused_as_openai_does_and_leaves_nothing(
    server: Server, operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    set_quota(operator, tenant, len(DATA))
    file = client.files.create(file=("a.jsonl", DATA), purpose="batch")
    before = on_objects(server)
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("b.jsonl", DATA), purpose="batch")
    error = refused.value
    assert (error.code, error.type, error.param) == ("storage_quota_exceeded", "invalid_request_error", None)
    assert error.message.count("You have exceeded your storage quota: tenant") == 1
    assert error.response.headers["x-should-retry"] == "false"
    assert on_objects(server) == before, "its object is deleted"
    client.files.delete(file.id)
    assert stored(operator, tenant) == 0
    client.files.create(file=("c.jsonl", DATA), purpose="batch")
    assert stored(operator, tenant) == len(DATA)


def on_objects(server: Server) -> list[str]:
    async def listed(_: Session) -> list[str]:
        return await object_keys(server.objects, "inputs/")

    return on(server.database, listed)


@pytest.mark.parametrize("purpose", ["batch", "user_data"])
def test_an_upload_larger_than_the_room_is_cut_off_while_it_is_read(
    operator: httpx2.Client, client: openai.OpenAI, tenant: str, purpose: Any
) -> None:
    set_quota(operator, tenant, 100)
    with pytest.raises(openai.BadRequestError, match="You have exceeded your storage quota"):
        client.files.create(file=("a.jsonl", DATA * 1000), purpose=purpose)
    assert stored(operator, tenant) == 0


def test_a_large_body_is_refused_before_it_is_read(
    server: Server, operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    set_quota(operator, tenant, 100)
    head = (
        "POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"authorization: Bearer {client.api_key}\r\n"
        f"content-type: multipart/form-data; boundary=x\r\ncontent-length: {50 * 2**20}\r\n\r\n"
    )
    answer = spoken(server, head.encode())
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"code":"storage_quota_exceeded"' in answer


def test_a_repeated_request_gets_its_file_though_there_is_no_room_for_another(
    operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    set_quota(operator, tenant, len(DATA))
    made = [
        client.files.create(
            file=("a.jsonl", DATA), purpose="batch", extra_headers={"Idempotency-Key": "once"}
        ).id
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_an_upload_in_parts_reserves_its_size(
    operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    set_quota(operator, tenant, len(DATA))
    upload = client.uploads.create(
        bytes=len(DATA), filename="a.jsonl", mime_type="text/plain", purpose="batch"
    )
    with pytest.raises(openai.BadRequestError, match="You have exceeded your storage quota"):
        client.files.create(file=("b.jsonl", DATA), purpose="batch")
    part = client.uploads.parts.create(upload.id, data=DATA)
    done = client.uploads.complete(upload.id, part_ids=[part.id])
    assert done.status == "completed"
    assert stored(operator, tenant) == len(DATA)


def test_a_tenant_over_its_quota_creates_no_batch_and_no_response(
    operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    file = client.files.create(file=("a.jsonl", DATA), purpose="batch")
    set_quota(operator, tenant, 10)
    with pytest.raises(openai.BadRequestError, match="You have exceeded your storage quota"):
        client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="You have exceeded your storage quota"):
        client.responses.create(model="m", input="hello", background=True)


def test_an_operation_over_the_quota_is_refused_with_its_own_code(
    server: Server, operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    set_quota(operator, tenant, 1)
    with server.http(client.api_key) as http:
        answer = http.post("/api/v1/operations/resize/batches", json={"items": [{"vm": "a"}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "STORAGE_QUOTA_EXCEEDED")


# Usage


def test_any_user_sees_the_usage_of_the_own_tenant(
    server: Server, client: openai.OpenAI, tenant: str
) -> None:
    async def scene(db: Session) -> None:
        worker = a_worker()
        batch = await a_batch(db, 3, tenant=tenant)
        await run_to_the_end(db, worker)
        await finalize(db, worker, batch)
        await a_batch(db, 2, tenant=tenant)

    on(server.database, scene)
    client.files.create(file=("a.jsonl", DATA), purpose="batch")
    with server.http(client.api_key) as http:
        report = http.get("/api/v1/usage").json()
        (day,), (running,) = report["data"], report["running"]
        assert (day["tenant"], day["batches"], day["lines"], day["failed"]) == (tenant, 1, 3, 0)
        assert day["tokens"] == {"input": 9, "cached": 0, "output": 15, "reasoning": 0}
        assert (day["bytes_added"], day["bytes_stored"], day["cost_usd"]) == (len(DATA), len(DATA), 0)
        assert (running["period"], running["batches"], running["bytes_stored"]) == (None, 1, None)
        past = http.get("/api/v1/usage", params={"since": "2020-01-01", "until": "2020-02-01"}).json()
        assert (past["data"], past["running"]) == ([], [])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"since": "2026-02-01", "until": "2026-02-01"}, "since"),
        ({"until": "0001-01-01"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"by": "week"}, "by"),
    ],
)
def test_a_wrong_period_is_refused(
    server: Server, client: openai.OpenAI, query: dict[str, str], param: str
) -> None:
    with server.http(client.api_key) as http:
        answer = http.get("/api/v1/usage", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_operators_see_all_tenants_page_by_page(
    operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    client.files.create(file=("a.jsonl", DATA), purpose="batch")
    found, after = [], None
    while True:
        page = operator.get("/api/v1/admin/usage", params={"limit": 1, **({"after": after} if after else {})})
        found += [each["tenant"] for each in page.json()["data"]]
        after = page.json()["next"]
        if after is None:
            break
    assert tenant in found
    assert len(found) == len(set(found))
    one = operator.get("/api/v1/admin/usage", params={"tenant": tenant}).json()
    assert [each["tenant"] for each in one["data"]] == [tenant]
    names = [each["name"] for each in operator.get("/api/v1/admin/tenants").json()["data"]]
    assert names == sorted(names)
    assert tenant in names


@pytest.mark.parametrize("role", [Role.USER, Role.APPROVER, Role.ADMIN])
def test_nobody_but_an_operator_sees_or_changes_other_tenants(server: Server, role: Role) -> None:
    with server.http(server.key("acme", role)) as http:
        for method, path, body in (
            ("GET", "/api/v1/admin/usage", None),
            ("GET", "/api/v1/admin/tenants", None),
            ("GET", "/api/v1/admin/tenants/acme", None),
            ("PUT", "/api/v1/admin/tenants/acme/quota", {"max_bytes": None}),
            ("POST", "/api/v1/admin/tenants/acme/erase", {"confirm": "acme"}),
        ):
            answer = http.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED"), path


def test_an_operator_is_an_admin_of_its_own_tenant(server: Server, operator: httpx2.Client) -> None:
    assert operator.get("/api/v1/admin/rate-limits/status").status_code == 200
    assert operator.get("/metrics").status_code == 200


# Erasing


def test_an_erasure_needs_the_name_twice_and_can_be_repeated(
    server: Server, operator: httpx2.Client, client: openai.OpenAI, tenant: str
) -> None:
    client.files.create(file=("a.jsonl", DATA), purpose="batch")
    path = f"/api/v1/admin/tenants/{tenant}/erase"
    wrong = operator.post(path, json={"confirm": "other"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "confirm")
    assert client.files.list().data
    for _ in range(2):
        begun = operator.post(path, json={"confirm": tenant, "reason": "left"})
        assert (begun.status_code, begun.json()["status"]) == (202, "erasing")
    with pytest.raises(openai.AuthenticationError):
        client.files.list()
    entries = on(
        server.database,
        lambda db: sql(
            db,
            "SELECT actor, detail->>'reason' FROM batchline.audit_log"
            " WHERE tenant = %(tenant)s AND action = 'tenant.erasure_begun'",
            tenant=tenant,
        ),
    )
    assert entries == [("key of ops", "left")]


def test_an_upload_that_is_under_way_when_its_tenant_is_erased_is_refused(
    server: Server, client: openai.OpenAI, tenant: str
) -> None:
    """The key was valid when the request began."""

    def body() -> Iterator[bytes]:
        head = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield head + b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + DATA
        on(server.database, lambda db: governed.begin_erasure(db, OPERATOR, tenant))
        yield b"\r\n--x--\r\n"

    client.files.list()
    with server.http(client.api_key) as http:
        http.headers["content-type"] = "multipart/form-data; boundary=x"
        before = on_objects(server)
        answer = http.post("/v1/files", content=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_erased")
    assert on_objects(server) == before


def test_unknown_tenants_are_not_found(operator: httpx2.Client) -> None:
    for method, path, body in (
        ("GET", "/api/v1/admin/tenants/nobody", None),
        ("PUT", "/api/v1/admin/tenants/nobody/quota", {"max_bytes": 1}),
        ("POST", "/api/v1/admin/tenants/nobody/erase", {"confirm": "nobody"}),
    ):
        answer = operator.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "TENANT_NOT_FOUND"), path

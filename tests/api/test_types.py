"""Every answer against the official client's own types, strictly, and every refusal against its envelope.

The client builds its objects without looking at them. Here each answer that it gets, in all the states that
an object has, is taken as it came over the wire and validated: names, types, and values of enumerations.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx2
import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject, Model, Upload
from openai.types.uploads import UploadPart
from openai.types.webhooks import (
    DeletedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointTestResult,
    WebhookEndpointWithSecret,
    WebhookEventTypeList,
)
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.model.ids import BATCH, read
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_worker, complete, failed, finalize, on, overrun, take
from tests.support.builders import read as stored
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.webhook_receiver import receiving

CHAT: Final = "/v1/chat/completions"
ID = r"[^/]+"
# What is answered, by method and path: the type, or, for a list, that of its elements.
ONE: dict[tuple[str, str], type[BaseModel]] = {
    ("POST", "/v1/files"): FileObject,
    ("GET", f"/v1/files/{ID}"): FileObject,
    ("DELETE", f"/v1/files/{ID}"): FileDeleted,
    ("POST", "/v1/uploads"): Upload,
    ("POST", f"/v1/uploads/{ID}/parts"): UploadPart,
    ("POST", f"/v1/uploads/{ID}/(complete|cancel)"): Upload,
    ("POST", "/v1/batches"): Batch,
    ("GET", f"/v1/batches/{ID}"): Batch,
    ("POST", f"/v1/batches/{ID}/cancel"): Batch,
    ("GET", f"/v1/models/{ID}"): Model,
    ("POST", "/v1/webhook_endpoints"): WebhookEndpointWithSecret,
    ("GET", f"/v1/webhook_endpoints/{ID}"): WebhookEndpoint,
    ("POST", f"/v1/webhook_endpoints/{ID}"): WebhookEndpoint,
    ("DELETE", f"/v1/webhook_endpoints/{ID}"): DeletedWebhookEndpoint,
    ("POST", f"/v1/webhook_endpoints/{ID}/rotate_secret"): WebhookEndpointWithSecret,
    ("POST", f"/v1/webhook_endpoints/{ID}/test"): WebhookEndpointTestResult,
    ("GET", "/v1/webhook_event_types"): WebhookEventTypeList,
}
MANY: dict[str, type[BaseModel]] = {
    "/v1/files": FileObject,
    "/v1/batches": Batch,
    "/v1/models": Model,
    "/v1/webhook_endpoints": WebhookEndpoint,
}
UNPAGED = {"/v1/models"}


class Judge:
    """Looks at every answer that a client gets."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.statuses: set[str] = set()

    def sync_hook(self, response: httpx2.Response) -> None:
        response.read()
        self.look(response)

    async def async_hook(self, response: httpx2.Response) -> None:
        await response.aread()
        self.look(response)

    def look(self, response: httpx2.Response) -> None:
        method, path = response.request.method, response.request.url.path
        if path.endswith("/content"):
            return
        answer: Any = response.json()
        assert response.status_code == 200, answer
        if method == "GET" and path in MANY:
            self.seen.add((method, path))
            keys = (
                {"object", "data"}
                if path in UNPAGED
                else {"object", "data", "first_id", "last_id", "has_more"}
            )
            assert set(answer) == keys
            assert answer["object"] == "list"
            if path not in UNPAGED:
                ends = [answer["data"][nth]["id"] for nth in (0, -1)] if answer["data"] else [None, None]
                assert [answer["first_id"], answer["last_id"]] == ends
            for element in answer["data"]:
                self._one(MANY[path], element)
            return
        ((known, kind),) = [
            (known, kind)
            for known, kind in ONE.items()
            if known[0] == method and re.fullmatch(known[1], path)
        ]
        self.seen.add(known)
        self._one(kind, answer)

    def _one(self, kind: type[BaseModel], answer: dict[str, Any]) -> None:
        # As JSON, strictly: a number in quotes is no number.
        made = kind.model_validate_json(json.dumps(answer), strict=True)
        # What OpenAI does not have is in one field of ours.
        more = set(made.model_extra or ()) - {"batchline"}
        assert not more, f"{kind.__name__} has no {more}"
        if isinstance(made, Batch):
            self.statuses.add(made.status)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    upstreams = (UpstreamSettings("some", "http://127.0.0.1:9/v1", models=("model", "other")),)
    settings = ServerSettings(
        upstreams=upstreams, sessions=8, streams=4, max_file_bytes=100_000, allow_private_webhooks=True
    )
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings) as running,
    ):
        yield running


def requests(count: int) -> bytes:
    form = '{"custom_id": "r%d", "method": "POST", "url": "%s", "body": {"model": "model"}}\n'
    return "".join(form % (nth, CHAT) for nth in range(count)).encode()


class Life:
    """What workers do with a tenant's batches, between two looks of the client."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def batch(self, displayed: Batch, act: str) -> None:
        batch_id = read(BATCH, displayed.id)
        assert batch_id is not None
        on(self._server.database, lambda db: acted(db, batch_id, act))


async def acted(db: Session, batch_id: UUID, act: str) -> None:
    worker = a_worker()
    match act:
        case "expire":
            await overrun(db, batch_id)
            await batches.close(db, batch_id, "expire")
            await finalize(db, worker, await stored(db, batch_id))
        case "finish":
            items = await take(db, worker)
            await spans.settle(db, worker.id, [failed(items[0])])
            await complete(db, worker, items[1:])
        case "finalize":
            await finalize(db, worker, await stored(db, batch_id))


def drive(client: openai.OpenAI, life: Life, hook: str) -> None:
    """Every call, and every state of every object."""
    made = client.files.create(
        file=("in.jsonl", requests(3)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    bad = client.files.create(file=("bad.jsonl", b"\n\n{\n"), purpose="batch")
    for purpose in ("assistants", "fine-tune", "user_data", "vision"):
        client.files.create(file=("x", b"x"), purpose=purpose)
    client.files.retrieve(made.id)
    list(client.files.list(limit=2))

    def create(file_id: str = made.id) -> Batch:
        return client.batches.create(
            input_file_id=file_id,
            endpoint=CHAT,
            completion_window="24h",
            metadata={"a": "b"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )

    assert create(bad.id).status == "failed"
    done = create()
    assert done.output_file_id is not None
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output", "while it runs"
    life.batch(done, "finish")
    assert client.batches.retrieve(done.id).status == "finalizing"
    life.batch(done, "finalize")
    done = client.batches.retrieve(done.id)
    assert done.status == "completed"
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    client.files.retrieve(done.output_file_id)
    client.files.retrieve(done.error_file_id)
    expired = create()
    life.batch(expired, "expire")
    assert client.batches.retrieve(expired.id).status == "expired"
    cancelled = create()
    assert client.batches.cancel(cancelled.id).status in ("cancelling", "cancelled", "finalizing")
    life.batch(cancelled, "finalize")
    assert client.batches.retrieve(cancelled.id).status == "cancelled"
    list(client.batches.list(limit=2))
    client.files.delete(made.id)

    uploads = [
        client.uploads.create(bytes=5, filename="x", mime_type="text/plain", purpose="user_data")
        for _ in range(2)
    ]
    part = client.uploads.parts.create(uploads[0].id, data=b"hello")
    client.uploads.complete(uploads[0].id, part_ids=[part.id])
    client.uploads.cancel(uploads[1].id)

    assert [model.id for model in client.models.list()] == ["model", "other"]
    client.models.retrieve("model")

    webhook = client.webhooks.create(name="n", url=hook, event_types=["batch.completed", "batch.failed"])
    client.webhooks.retrieve(webhook.id)
    client.webhooks.update(webhook.id, name="m")
    client.webhooks.rotate_secret(webhook.id)
    client.webhooks.test(webhook.id, event_type="batch.completed")
    list(client.webhooks.list())
    client.webhooks.event_types.list()
    client.webhooks.delete(webhook.id)


def test_every_answer_is_what_the_official_types_say(server: Server) -> None:
    judge = Judge()
    http = openai.DefaultHttpxClient(event_hooks={"response": [judge.sync_hook]})
    with (
        receiving() as receiver,
        openai.OpenAI(
            api_key=server.key("sync"), base_url=f"{server.url}/v1", max_retries=0, http_client=http
        ) as client,
    ):
        drive(client, Life(server), receiver.url)
    assert judge.seen == {*ONE, *(("GET", path) for path in MANY)}, "every call was made"
    assert judge.statuses >= {"failed", "in_progress", "finalizing", "completed", "expired", "cancelled"}


def test_every_documented_v1_call_is_checked_against_the_official_types(server: Server) -> None:
    """But those that OpenAI's client does not know."""
    ours = {
        ("GET", "/v1/batches/x/attempts"),
        ("POST", "/v1/batches/x/pause"),
        ("POST", "/v1/batches/x/resume"),
        ("POST", "/v1/batches/x/retry"),
        ("GET", "/v1/files/x/content"),
        ("GET", "/v1/webhook_endpoints/x/deliveries"),
    }
    with server.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        # Responses are checked in test_responses.
        if not path.startswith("/v1/") or path.startswith("/v1/responses"):
            continue
        for method in (name.upper() for name in methods):
            call = (method, re.sub(r"{[^}]+}", "x", path))
            known = any(method == of and re.fullmatch(form, call[1]) for of, form in ONE)
            assert known or (method == "GET" and path in MANY) or call in ours, call


async def test_every_answer_to_the_asynchronous_client_is_what_the_official_types_say(server: Server) -> None:
    judge, key = Judge(), await asyncio.to_thread(server.key, "async")
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [judge.async_hook]})
    async with openai.AsyncOpenAI(
        api_key=key, base_url=f"{server.url}/v1", max_retries=0, http_client=http
    ) as client:
        file = await client.files.create(file=("in.jsonl", requests(3)), purpose="batch")
        await client.files.wait_for_processing(file.id)
        made = [
            await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            for _ in range(5)
        ]
        listed = [batch.id async for batch in client.batches.list(limit=2)]
        assert listed == [batch.id for batch in made[::-1]]
        await client.batches.retrieve(made[0].id)
        await client.batches.cancel(made[0].id)
        assert [found.id async for found in client.files.list()] == [file.id]
        upload = await client.uploads.create(
            bytes=5, filename="x", mime_type="text/plain", purpose="user_data"
        )
        part = await client.uploads.parts.create(upload.id, data=b"hello")
        await client.uploads.complete(upload.id, part_ids=[part.id])
        await client.uploads.cancel(
            (
                await client.uploads.create(
                    bytes=5, filename="x", mime_type="text/plain", purpose="user_data"
                )
            ).id
        )
        assert [model.id async for model in client.models.list()] == ["model", "other"]
        await client.models.retrieve("other")
        webhook = await client.webhooks.create(
            name="n", url="https://93.184.216.34/", event_types=["batch.completed"]
        )
        await client.webhooks.retrieve(webhook.id)
        await client.webhooks.delete(webhook.id)
        await client.files.delete(file.id)
    assert len(judge.seen) > 15


# Refusals


def envelope(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


def test_every_refusal_has_the_envelope_and_an_id(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.http(server.key("refused")) as http, server.http() as stranger:
        envelope(stranger.get("/v1/batches"), 401)
        for path in (
            "/v1",
            "/v1/",
            "/v2/batches",
            "/v1/batches/x/y",
            "/v1/files/file-x",
            "/favicon.ico",
        ):
            envelope(http.get(path), 404)
        for method, path in (
            ("PUT", "/v1/batches"),
            ("PATCH", "/v1/files/x"),
            ("DELETE", "/v1/batches/x"),
            ("GET", "/v1/batches/x/cancel"),
            ("OPTIONS", "/v1/batches"),
            ("POST", "/healthz"),
        ):
            answer = http.request(method, path)
            envelope(answer, 405)
            assert answer.headers["allow"]
        envelope(http.post("/v1/batches", json={}), 400)
        envelope(http.get("/v1/batches", params={"limit": 101}), 400)
        envelope(http.post("/v1/batches", content=b"x" * 2_000_000), 413)
        envelope(http.post("/v1/files", files={"file": b"x" * 200_000}, data={"purpose": "batch"}), 413)
        envelope(http.post("/v1/files", json={}), 415)
        envelope(http.post("/v1/uploads/x/parts", files={"data": b""}), 404)
        keyed = {"Idempotency-Key": "one"}
        files = [{"file": ("x", content)} for content in (requests(1), requests(2))]
        for status, file in zip((200, 422), files, strict=True):
            answer = http.post("/v1/files", files=file, data={"purpose": "batch"}, headers=keyed)
            if status == 422:
                envelope(answer, status)
        made = answer_of(http, requests(1))
        over = {"range": "bytes=1000000-"}
        envelope(http.get(f"/v1/files/{made}/content", headers=over), 416)
        requested = {"input_file_id": made, "endpoint": CHAT, "completion_window": "24h"}
        batch = http.post("/v1/batches", json=requested).json()
        in_use = http.delete(f"/v1/files/{batch['output_file_id']}")
        envelope(in_use, 409)
        assert in_use.headers["x-should-retry"] == "false"


def answer_of(http: httpx2.Client, content: bytes) -> str:
    answer = http.post("/v1/files", files={"file": ("x", content)}, data={"purpose": "batch"})
    assert answer.status_code == 200, answer.text
    file_id: str = answer.json()["id"]
    return file_id


def test_an_internal_error_has_the_envelope_and_no_details(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("at /secret/place")

    monkeypatch.setattr(batches, "list_newest", breaks)
    with server.http(server.key("broken")) as http, capture_logs() as logged:
        answer = http.get("/v1/batches")
        error = envelope(answer, 500)
        assert "secret" not in answer.text
        assert error["code"] == "server_error"
        assert http.get("/v1/files").status_code == 200, "and on the same connection it goes on"
    (reported,) = [entry for entry in logged if entry["event"] == "request failed"]
    assert reported["exc_info"]
    assert reported["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("status", [402, 418, 429, 502, 504])
def test_whatever_else_a_route_refuses_with_has_the_envelope(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """No route answers these today; one that will must not have to think of it."""

    async def refuses(*_: object, **__: object) -> None:
        raise HTTPException(status, "no", {"retry-after": "7"})

    monkeypatch.setattr(batches, "list_newest", refuses)
    with server.http(server.key("other")) as http:
        answer = http.get("/v1/batches")
    assert answer.headers["retry-after"] == "7"
    envelope(answer, status)


def test_an_unreachable_database_is_a_503_that_may_be_retried(tmp_path: Path) -> None:
    with serving("postgresql://127.0.0.1:9/none", tmp_path) as server, server.http("bl-any") as http:
        for path in ("/v1/batches", "/v1/files", "/v1/models"):
            answer = http.get(path)
            envelope(answer, 503)
            assert answer.headers["retry-after"]

"""Webhook endpoints over HTTP: the official client manages them, and strangers see nothing of them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai
import pytest
from openai.types.webhooks import WebhookEndpoint, WebhookEndpointWithSecret

from batchline.config.settings import ServerSettings
from batchline.model.ids import BATCH, show
from batchline.store import audit
from batchline.store.audit import Entry
from batchline.store.session import Session
from tests.support.builders import on
from tests.support.processes import working
from tests.support.scenes import database
from tests.support.scripted_upstream import an_upstream_that_refuses
from tests.support.serving import NOWHERE, Server, serving
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Received, Receiver, receiving
from tests.support.webhooks import ALLOWED, an_ended_batch, outbox, settled

PUBLIC = "https://93.184.216.34/hook"
COMPLETED: Final = "batch.completed"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As it is by default: to public addresses only."""
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def private(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its operator allows private addresses."""
    settings = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4, allow_private_webhooks=True)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings) as running,
    ):
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def create(client: openai.OpenAI, url: str = PUBLIC, name: str = "mine") -> WebhookEndpointWithSecret:
    return client.webhooks.create(name=name, url=url, event_types=["batch.completed", "batch.failed"])


def test_the_official_client_manages_endpoints(server: Server) -> None:
    client = server.client("manages")
    made = create(client)
    WebhookEndpointWithSecret.model_validate(made.model_dump())
    assert made.signing_secret.startswith("whsec_")
    assert made.event_types == ["batch.completed", "batch.failed"]

    found = client.webhooks.retrieve(made.id)
    WebhookEndpoint.model_validate(found.model_dump())
    assert (found.name, found.url, found.object) == ("mine", PUBLIC, "webhook_endpoint")
    assert found.signing_secret_hint == f"whsec_…{made.signing_secret[-4:]}"

    changed = client.webhooks.update(made.id, name="yours", event_types=["batch.expired", "batch.expired"])
    assert (changed.name, changed.url, changed.event_types) == ("yours", PUBLIC, ["batch.expired"])

    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret != made.signing_secret
    assert client.webhooks.rotate_secret(made.id).signing_secret != rotated.signing_secret

    gone = client.webhooks.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "webhook_endpoint.deleted")
    with pytest.raises(openai.NotFoundError):
        client.webhooks.retrieve(made.id)
    assert client.webhooks.event_types.list().data == [
        *("batch.completed", "batch.failed", "batch.expired", "batch.cancelled"),
        *("batch.approval_requested", "batch.approved", "batch.rejected", "batch.paused"),
    ]


async def test_the_async_client_manages_endpoints(server: Server) -> None:
    async with await asyncio.to_thread(server.async_client, "asynchronous") as client:
        made = await client.webhooks.create(name="a", url=PUBLIC, event_types=["batch.failed"])
        assert [found.id async for found in client.webhooks.list()] == [made.id]
        await client.webhooks.delete(made.id)


def test_lists_are_paged_newest_first(server: Server) -> None:
    client = server.client("pages")
    made = [create(client, name=f"n{n}").id for n in range(7)]
    assert [found.id for found in client.webhooks.list(limit=3)] == made[::-1]
    first = client.webhooks.list(limit=3)
    assert (len(first.data), first.has_more) == (3, True)
    with pytest.raises(openai.NotFoundError):
        client.webhooks.list(after="webhook_nothing")


def test_a_secret_is_displayed_only_once(server: Server) -> None:
    key = server.key("secret")
    client = server.client(key=key)
    made = create(client)
    with server.http(key) as http:
        for path in ("", f"/{made.id}", f"/{made.id}/deliveries"):
            answer = http.get(f"/v1/webhook_endpoints{path}")
            assert answer.status_code == 200
            assert made.signing_secret not in answer.text
            assert made.signing_secret.removeprefix("whsec_") not in answer.text


def test_another_tenants_endpoint_is_not_found(server: Server) -> None:
    made = create(server.client("owner"))
    key = server.key("stranger")
    assert list(server.client(key=key).webhooks.list()) == []
    path = f"/v1/webhook_endpoints/{made.id}"
    with server.http(key) as http:
        answers = [
            http.get(path),
            http.post(path, json={"name": "x"}),
            http.post(path, json={"url": "https://10.0.0.1"}),
            http.delete(path),
            http.post(f"{path}/rotate_secret", json={}),
            http.post(f"{path}/test", json={"event_type": COMPLETED}),
            http.get(f"{path}/deliveries"),
            http.get("/v1/webhook_endpoints", params={"after": made.id}),
        ]
    assert [answer.status_code for answer in answers] == [404] * len(answers)
    assert {answer.json()["error"]["code"] for answer in answers} == {"not_found"}
    assert server.client("owner").webhooks.retrieve(made.id).name == "mine"


def test_nothing_is_readable_without_a_key(server: Server) -> None:
    with server.http() as http:
        assert http.get("/v1/webhook_endpoints").status_code == 401
        assert http.post("/v1/webhook_endpoints", json={}).status_code == 401


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/hook",
        "http://localhost/hook",
        "http://[::1]/hook",
        "http://169.254.169.254/latest/meta-data/",
        "https://10.1.2.3/",
        "http://2130706433/",
        "ftp://93.184.216.34/",
        "https://user:word@93.184.216.34/",
        "https://93.184.216.34:22/",
        "https://receiver.invalid/",
        "nonsense",
        "",
    ],
)
def test_a_url_that_may_not_be_sent_to_is_refused(server: Server, url: str) -> None:
    client = server.client("refused")
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, url)
    assert (refused.value.param, refused.value.code) == ("url", "invalid_webhook_url")
    made = create(client)
    with pytest.raises(openai.BadRequestError):
        client.webhooks.update(made.id, url=url)
    client.webhooks.delete(made.id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "", "url": PUBLIC, "event_types": [COMPLETED]}, "name"),
        ({"name": "x" * 257, "url": PUBLIC, "event_types": [COMPLETED]}, "name"),
        ({"name": "x", "url": PUBLIC, "event_types": []}, "event_types"),
        ({"name": "x", "url": PUBLIC, "event_types": ["response.completed"]}, "event_types.0"),
        ({"name": "x", "url": PUBLIC, "event_types": COMPLETED}, "event_types"),
        ({"name": "x", "url": 5, "event_types": [COMPLETED]}, "url"),
        ({"name": "x", "url": PUBLIC, "event_types": [COMPLETED], "secret": "mine"}, "secret"),
    ],
)
def test_an_invalid_request_is_refused(server: Server, body: dict[str, object], param: str) -> None:
    with server.http(server.key("nonsense")) as http:
        answer = http.post("/v1/webhook_endpoints", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_name_that_cannot_be_stored_is_refused(server: Server) -> None:
    with server.http(server.key("nul")) as http:
        body = {"name": "a\0b", "url": PUBLIC, "event_types": [COMPLETED]}
        assert http.post("/v1/webhook_endpoints", json=body).status_code == 400


def test_a_tenant_has_a_bounded_number_of_endpoints(server: Server) -> None:
    client = server.client("many")
    for _ in range(100):
        create(client)
    with pytest.raises(openai.ConflictError) as refused:
        create(client)
    assert refused.value.code == "too_many_webhooks"
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_a_test_event_is_sent_at_once_and_verifies(private: Server, receiver: Receiver) -> None:
    client = private.client("tests")
    made = create(client, receiver.url)
    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    result = client.webhooks.test(made.id, event_type="batch.cancelled")
    assert (result.status_code, result.success, result.event_type) == (200, True, "batch.cancelled")
    (got,) = receiver.received
    for secret in (made.signing_secret, rotated.signing_secret):
        assert client.webhooks.unwrap(got.body, got.headers, secret=secret).type == "batch.cancelled"
    receiver.answer = lambda _: (418, {})
    assert client.webhooks.test(made.id, event_type=COMPLETED).status_code == 418


def test_an_undelivered_test_event_says_why(private: Server) -> None:
    client = private.client("unreachable")
    taken, url = an_upstream_that_refuses()
    with taken, pytest.raises(openai.UnprocessableEntityError) as refused:
        client.webhooks.test(create(client, url).id, event_type=COMPLETED)
    assert refused.value.code == "webhook_unreachable"
    assert "Connection refused" in refused.value.message


def test_a_batch_that_fails_validation_is_reported_at_once(
    private: Server, receiver: Receiver, tmp_path: Path
) -> None:
    """No worker ends it: the server's own word of it must reach one."""
    client = private.client("fails")
    made = create(client, receiver.url)
    with working(private.database, tmp_path, **ALLOWED):
        for _ in range(2):
            file = client.files.create(file=("bad.jsonl", b"not json\n"), purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            assert batch.status == "failed"
            got = message_about(receiver, batch.id)
            event = client.webhooks.unwrap(got.body, got.headers, secret=made.signing_secret)
            assert event.type == "batch.failed"
            assert event.data.id == batch.id


def message_about(receiver: Receiver, batch_id: str) -> Received:
    """The first one: a message may be sent twice."""

    def found() -> Received | None:
        return next((got for got in receiver.received if got.event["data"]["id"] == batch_id), None)

    got = wait_for(f"a message about {batch_id}", found)
    assert isinstance(got, Received)
    return got


async def test_deliveries_are_listed_with_their_attempts(private: Server, receiver: Receiver) -> None:
    key = await asyncio.to_thread(private.key, "said")
    client = private.client(key=key)
    made = create(client, receiver.url)
    statuses = iter([500, 200, 200])
    receiver.answer = lambda _: (next(statuses), {})

    async with Session(private.database, "test") as db:
        ended = [show(BATCH, (await an_ended_batch(db, "said")).id) for _ in range(2)]
        async with outbox(db) as working:
            working.wake()
            await asyncio.to_thread(receiver.wait_for, 3)
            await settled(working)
    with private.http(key) as http:
        path = f"/v1/webhook_endpoints/{made.id}/deliveries"
        all_of_them = http.get(path).json()
        page = http.get(path, params={"limit": 1}).json()
        rest = http.get(path, params={"limit": 1, "after": page["last_id"]}).json()
        assert http.get(path, params={"after": "evt_nothing"}).status_code == 404
    assert [said["batch_id"] for said in all_of_them["data"]] == ended[::-1]
    assert [said["status"] for said in all_of_them["data"]] == ["delivered"] * 2
    assert sorted(said["attempts"] for said in all_of_them["data"]) == [1, 2]
    assert page["has_more"]
    assert not rest["has_more"]
    assert page["data"] + rest["data"] == all_of_them["data"]
    ids = {got.headers["webhook-id"] for got in receiver.received}
    assert ids == {said["id"] for said in all_of_them["data"]}


def test_every_change_of_an_endpoint_is_in_the_audit_log_without_its_secrets(server: Server) -> None:
    client = server.client("audited")
    made = create(client, f"{PUBLIC}/T0-the-password")
    client.webhooks.update(made.id, name="other")
    rotated = client.webhooks.rotate_secret(made.id)
    client.webhooks.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.webhooks.delete(made.id)

    async def log(db: Session) -> list[Entry]:
        return [entry for entry in await audit.page(db, tenant="audited") if "webhook" in entry.action]

    entries = on(server.database, log)
    assert [entry.action for entry in entries] == [
        "webhook.created",
        "webhook.changed",
        "webhook.secret_rotated",
        "webhook.deleted",
    ]
    assert {entry.actor for entry in entries} == {"key of audited"}
    assert {entry.detail["webhook_id"] for entry in entries} == {made.id}
    assert entries[0].detail["url"] == "https://93.184.216.34/…"
    assert entries[1].detail["name"] == "other"
    for secret in ("T0-the-password", made.signing_secret, rotated.signing_secret):
        assert secret not in str(entries)

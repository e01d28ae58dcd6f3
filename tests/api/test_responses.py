"""/v1/responses with `background`, through the official client: each is a batch of one line."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response as OpenAIResponse

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.model import Completed, Failed, Item, ids
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, finalize, on, overrun, read, sql, take
from tests.support.scenes import database
from tests.support.serving import Server, serving

MODEL = "m"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    upstream = UpstreamSettings("nowhere", "http://127.0.0.1:9/v1", models=(MODEL,))
    settings = ServerSettings(upstreams=(upstream,), sessions=8, streams=4)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings) as running,
    ):
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client(ids.new_id().hex) as client:
        yield client


def settled(server: Server, response_id: str, verdict: Any) -> bytes:
    """A worker takes the line of a response and settles it; the body that it was given."""

    async def work(db: Session) -> bytes:
        worker = a_worker()
        batch_id = ids.read(ids.RESPONSE, response_id)
        (item,) = await take(db, worker, 1, scope=spans.Scope(batch_id=batch_id))
        await spans.settle(db, worker.id, [verdict(item)])
        return item.body

    return on(server.database, work)


def answered(item: Item) -> Completed:
    body = {"id": "resp_upstream", "object": "response", "status": "completed", "output": [], "model": "m-1"}
    line = {"response": {"status_code": 200, "body": body}, "error": None}
    return Completed(item, 200, json.dumps(line).encode())


def created(client: openai.OpenAI, **more: Any) -> Any:
    return client.responses.create(model=MODEL, input="hi", background=True, **more)


def test_a_response_is_queued_then_in_progress_then_completed(server: Server, client: openai.OpenAI) -> None:
    response = created(client, metadata={"mine": "1"}, temperature=0.5)
    assert response.id.startswith("resp_")
    assert (response.status, response.background, response.model) == ("queued", True, MODEL)
    assert (response.metadata, response.temperature) == ({"mine": "1"}, 0.5)

    async def held(db: Session) -> None:
        worker = a_worker()
        batch_id = ids.read(ids.RESPONSE, response.id)
        items = await take(db, worker, 1, scope=spans.Scope(batch_id=batch_id))
        assert client.responses.retrieve(response.id).status == "in_progress"
        await spans.settle(db, worker.id, [answered(item) for item in items])

    on(server.database, held)
    done = client.responses.retrieve(response.id)
    assert (done.id, done.status, done.model) == (response.id, "completed", "m-1")
    assert (done.metadata, done.created_at) == ({"mine": "1"}, response.created_at)


def test_the_upstream_gets_the_request_as_it_came_but_for_background(
    server: Server, client: openai.OpenAI
) -> None:
    response = created(client, extra_body={"odd": 1e3, "text": {"format": {"type": "text"}}})
    body = settled(server, response.id, answered)
    assert json.loads(body) == {
        "model": MODEL,
        "input": "hi",
        "odd": 1000.0,
        "text": {"format": {"type": "text"}},
    }


def failed_with(line: dict[str, Any], status: int | None = None) -> Any:
    return lambda item: Failed(item, json.dumps(line).encode(), status)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            {
                "response": {"status_code": 400, "body": {"error": {"code": "bad", "message": "no"}}},
                "error": None,
            },
            ("bad", "no"),
        ),
        ({"response": {"status_code": 500, "body": "?"}, "error": None}, ("http_500", None)),
        ({"response": None, "error": {"code": "timeout", "message": "late"}}, ("timeout", "late")),
    ],
    ids=["the upstream's error", "no JSON", "no answer"],
)
def test_a_failed_response_says_why(
    server: Server, client: openai.OpenAI, line: dict[str, Any], error: tuple[str, str | None]
) -> None:
    response = created(client)
    settled(server, response.id, failed_with(line))
    displayed = client.responses.retrieve(response.id)
    assert displayed.status == "failed"
    assert displayed.error is not None
    assert displayed.error.code == error[0]
    assert displayed.error.message == (error[1] or "The upstream refused the request.")


def test_a_response_is_read_with_the_parameters_of_the_official_client(client: openai.OpenAI) -> None:
    made = created(client)
    read = client.responses.retrieve(made.id, include=["message.output_text.logprobs"], stream=False)
    assert read.id == made.id
    with pytest.raises(openai.BadRequestError, match="not streamed"):
        client.responses.retrieve(made.id, stream=True)


def test_a_response_can_be_cancelled_twice(server: Server, client: openai.OpenAI) -> None:
    response = created(client)
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_a_completed_response_stays_completed_when_it_is_cancelled(
    server: Server, client: openai.OpenAI
) -> None:
    response = created(client)
    settled(server, response.id, answered)
    assert client.responses.cancel(response.id).status == "completed"


def test_a_response_that_was_not_made_in_time_has_failed(server: Server, client: openai.OpenAI) -> None:
    response = created(client)
    batch_id = ids.read(ids.RESPONSE, response.id)
    assert batch_id is not None

    async def expire(db: Session) -> None:
        await overrun(db, batch_id)
        await sql(db, "UPDATE batchline.batches SET expiring_at = now() WHERE id = %(id)s", id=batch_id)
        await sql(db, "SELECT batchline.conclude_v2(%(id)s)", id=batch_id)

    on(server.database, expire)
    displayed = client.responses.retrieve(response.id)
    assert displayed.status == "failed"
    assert displayed.error is not None
    assert str(displayed.error.code) == "batch_expired"


def test_a_response_has_the_official_type(server: Server) -> None:
    key, body = server.key(ids.new_id().hex), b'{"model":"m","input":"hi","background":true}'
    queued = post(server, key, body)
    with server.http(key) as http:
        cancelled = http.post(f"/v1/responses/{queued.json()['id']}/cancel")
    for answer in (queued, cancelled):
        made = OpenAIResponse.model_validate_json(answer.content, strict=True)
        assert not made.model_extra, f"a response has no {set(made.model_extra or ())}"


def post(server: Server, key: str, body: bytes, **headers: str) -> httpx2.Response:
    with server.http(key) as http:
        sent = {"content-type": "application/json", **headers}
        return http.post("/v1/responses", content=body, headers=sent)


def test_a_repeated_key_returns_the_same_response(server: Server) -> None:
    key, body = server.key(ids.new_id().hex), b'{"model":"m","input":"hi","background":true}'
    first = post(server, key, body, **{"idempotency-key": "k"})
    again = post(server, key, body, **{"idempotency-key": "k"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["id"] == again.json()["id"]
    other = post(server, key, body.replace(b"hi", b"ho"), **{"idempotency-key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"m","input":"hi"}', "background"),
        (b'{"model":"m","input":"hi","background":false}', "background"),
        (b'{"input":"hi","background":true}', "model"),
        (b'{"model":"","input":"hi","background":true}', "model"),
        (b'{"model":"other","input":"hi","background":true}', "model"),
        (b'{"model":"m","input":"hi","background":true,"stream":true}', "stream"),
    ],
    ids=["no background", "in the foreground", "no model", "an empty model", "unknown model", "a stream"],
)
def test_a_request_that_cannot_run_is_refused_and_leaves_nothing(
    server: Server, body: bytes, param: str
) -> None:
    tenant = ids.new_id().hex
    refused = post(server, server.key(tenant), body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    files = on(
        server.database,
        lambda db: sql(db, "SELECT count(*) FROM batchline.files WHERE tenant = %(t)s", t=tenant),
    )
    assert files == [(0,)]


def test_a_response_of_another_tenant_and_a_batch_that_is_none_are_not_found(
    server: Server, client: openai.OpenAI
) -> None:
    response = created(client)
    with server.client(ids.new_id().hex) as other, pytest.raises(openai.NotFoundError):
        other.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nothing")

    async def ordinary(db: Session) -> str:
        return ids.show(ids.RESPONSE, (await a_batch(db, 1)).id)

    batch = on(server.database, ordinary)
    with server.client() as default:
        for call in (default.responses.retrieve, default.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch)

    async def untouched(db: Session) -> bool:
        batch_id = ids.read(ids.RESPONSE, batch)
        assert batch_id is not None
        return (await read(db, batch_id)).cancelling_at is None

    assert on(server.database, untouched)


def test_a_response_can_be_read_after_its_batch_has_ended(server: Server, client: openai.OpenAI) -> None:
    response = created(client)
    settled(server, response.id, answered)

    async def end(db: Session) -> None:
        batch_id = ids.read(ids.RESPONSE, response.id)
        assert batch_id is not None
        await finalize(db, a_worker(), await read(db, batch_id))

    on(server.database, end)
    assert client.responses.retrieve(response.id).status == "completed"

"""/v1/batches through the official client: every object, status, page, and refusal of the contract."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch as OpenAIBatch

from batchline.batches.finalize import finalize_one
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.model import ids
from batchline.store import batches, doctor, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import (
    LATER,
    a_batch,
    a_file,
    a_worker,
    complete,
    completed,
    failed,
    overrun,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.openai_batches import (
    CHAT,
    act,
    create,
    envelope,
    is_valid,
    tenant_of,
    upload,
    uuid_of,
)
from tests.support.processes import simulated
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.waiting import wait_for

ACME = "acme"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """For a tenant of its own, so that tests do not see each other's batches."""
    with server.client(ids.new_id().hex) as client:
        yield client


async def complete_and_finalize(db: Session, server: Server, batch: OpenAIBatch) -> None:
    worker = a_worker()
    await run_to_the_end(db, worker)
    await finalize_one(db, server.objects, worker, uuid_of(batch))


async def fail_and_finalize(db: Session, server: Server, batch: OpenAIBatch) -> None:
    worker = a_worker()
    await spans.settle(db, worker.id, [failed(item) for item in await take(db, worker)])
    await finalize_one(db, server.objects, worker, uuid_of(batch))


async def expire_with_one_result(db: Session, server: Server, batch: OpenAIBatch) -> None:
    worker = a_worker()
    await complete(db, worker, await take(db, worker, 1))
    await overrun(db, uuid_of(batch))
    assert await batches.close(db, uuid_of(batch), "expire")
    await finalize_one(db, server.objects, worker, uuid_of(batch))


async def kept_for(db: Session, batch: OpenAIBatch) -> timedelta:
    """How long the output of an ended batch is kept."""
    ended = await read(db, uuid_of(batch))
    ((kept,),) = await sql(
        db, "SELECT expires_at - created_at FROM batchline.files WHERE id = %(id)s", id=ended.output_file_id
    )
    assert isinstance(kept, timedelta)
    return kept


# Creation


def test_a_batch_is_created_in_progress_with_all_requested_fields(
    server: Server, client: openai.OpenAI
) -> None:
    file_id = upload(server, client, small=2)
    batch = is_valid(create(client, file_id, metadata={"run": "7"}))
    assert batch.status == "in_progress"
    assert (batch.input_file_id, batch.endpoint, batch.completion_window) == (file_id, CHAT, "24h")
    assert batch.metadata == {"run": "7"}
    assert batch.model == "small"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (2, 0)
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.in_progress_at == batch.created_at
    assert batch.errors is None
    assert batch.usage is not None
    assert batch.usage.total_tokens == 0
    created, retrieved = batch.model_dump(), client.batches.retrieve(batch.id).model_dump()
    usual = {
        "reused": 0,
        "duplicates": 0,
        "order": None,
        "paused_by": None,
        "paused": False,
        "steps": None,
        "priority": 0,
        "concurrency": None,
        "cost": None,
    }
    assert created.pop("batchline") == {**usual, "failures": None}
    assert retrieved.pop("batchline") == {**usual, "failures": []}
    assert retrieved == created


def test_a_batch_over_a_file_of_several_models_has_no_model(server: Server, client: openai.OpenAI) -> None:
    assert create(client, upload(server, client, small=2, large=1)).model is None


def test_an_unknown_file_endpoint_or_window_is_refused_at_once(server: Server, client: openai.OpenAI) -> None:
    file_id = upload(server, client)
    for requested, status, param in (
        ({"input_file_id": "file-nonsense"}, 404, "input_file_id"),
        ({"input_file_id": ids.show(ids.FILE, ids.new_id())}, 404, "input_file_id"),
        ({"endpoint": "/v1/audio/speech"}, 400, "endpoint"),
        ({"endpoint": "https://evil.example/v1/chat/completions"}, 400, "endpoint"),
        ({"completion_window": "25h"}, 400, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, 400, None),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
        ({"metadata": {str(n): "v" for n in range(17)}}, 400, "metadata"),
        ({"metadata": {"k": "a\0b"}}, 400, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, 400, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2592001}}, 400, None),
        ({"output_expires_after": {"anchor": "ended_at", "seconds": 3600}}, 400, None),
        ({"extra_body": {"surprise": 1}}, 400, "surprise"),
    ):
        whole: dict[str, Any] = {
            "input_file_id": file_id,
            "endpoint": CHAT,
            "completion_window": "24h",
            **requested,
        }
        with pytest.raises(openai.APIStatusError) as refused:
            client.batches.create(**whole)
        error = envelope(refused.value)
        assert refused.value.status_code == status, (requested, error)
        if param is not None:
            assert error["param"] == param, error
    assert client.batches.list().data == []


def test_a_file_for_another_purpose_is_refused_at_once(server: Server, client: openai.OpenAI) -> None:
    file_id = upload(server, client)
    act(
        server,
        lambda db: sql(
            db,
            "UPDATE batchline.files SET purpose = 'vision' WHERE id = %(id)s",
            id=ids.read(ids.FILE, file_id),
        ),
    )
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, file_id)
    assert envelope(refused.value)["code"] == "invalid_file_purpose"


@pytest.mark.parametrize("gone", ["deleted_at = now()", "expires_at = now() - interval '1 second'"])
def test_a_file_that_is_gone_is_not_found(server: Server, client: openai.OpenAI, gone: str) -> None:
    file_id = upload(server, client)
    act(
        server,
        lambda db: sql(
            db, f"UPDATE batchline.files SET {gone} WHERE id = %(id)s", id=ids.read(ids.FILE, file_id)
        ),
    )
    with pytest.raises(openai.NotFoundError):
        create(client, file_id)


def test_a_batch_over_a_file_with_errors_fails_and_lists_them(server: Server, client: openai.OpenAI) -> None:
    file_id = upload(server, client)
    act(
        server,
        lambda db: sql(
            db,
            """
            UPDATE batchline.files
            SET errors = '[{"code": "invalid_json_line", "message": "no", "param": null, "line": 2}]'
            WHERE id = %(id)s
            """,
            id=ids.read(ids.FILE, file_id),
        ),
    )
    batch = is_valid(create(client, file_id, metadata={"a": "b"}))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.in_progress_at is None
    assert batch.output_file_id is None
    assert batch.errors is not None
    assert batch.errors.object == "list"
    assert batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.code, error.message, error.line) == ("invalid_json_line", "no", 2)
    assert batch.request_counts is not None
    assert batch.request_counts.total == 0
    assert batch.metadata == {"a": "b"}
    events = act(
        server,
        lambda db: sql(db, "SELECT type FROM batchline.outbox WHERE batch_id = %(id)s", id=uuid_of(batch)),
    )
    assert events == [("batch.failed",)]
    assert_well(server, batch)


def test_lines_for_another_endpoint_fail_the_batch_with_their_numbers(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, a=2, b=1), endpoint="/v1/embeddings")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line, error.param) for error in batch.errors.data] == [
        ("url_mismatch", line, "url") for line in (1, 2, 3)
    ]
    assert_well(server, batch)


def test_only_the_first_hundred_errors_are_reported(server: Server, client: openai.OpenAI) -> None:
    many = {f"m{n}": 2 for n in range(150)}
    batch = create(client, upload(server, client, **many), endpoint="/v1/embeddings")
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.line for error in batch.errors.data] == list(range(1, 101))


def test_a_model_that_no_upstream_serves_fails_the_batch(
    server_url: str, template: str, tmp_path: Path
) -> None:
    settings = ServerSettings(upstreams=(UpstreamSettings("one", "http://127.0.0.1:9", models=("small",)),))
    with database(server_url, template) as url, serving(url, tmp_path, settings) as server:
        client = server.client(ACME)
        batch = create(client, upload(server, client, small=1, large=2))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(error.code, error.line) for error in batch.errors.data] == [
            ("model_not_found", 2),
            ("model_not_found", 3),
        ]
        assert create(client, upload(server, client, small=1)).status == "in_progress"


# Idempotency


async def test_fifty_concurrent_requests_with_one_key_create_one_batch(
    server: Server, client: openai.OpenAI
) -> None:
    file_id = await asyncio.to_thread(upload, server, client)
    async with server.async_client(key=client.api_key) as many:
        made = await asyncio.gather(
            *(
                many.batches.create(
                    input_file_id=file_id,
                    endpoint=CHAT,
                    completion_window="24h",
                    extra_headers={"Idempotency-Key": "once"},
                )
                for _ in range(50)
            )
        )
    (only,) = {batch.id for batch in made}
    assert [batch.id for batch in client.batches.list()] == [only]


def test_a_key_that_is_used_again_for_something_else_is_refused(
    server: Server, client: openai.OpenAI
) -> None:
    file_id = upload(server, client)
    header = {"Idempotency-Key": "k"}
    first = create(client, file_id, extra_headers=header)
    assert create(client, file_id, extra_headers=header).id == first.id
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        create(client, file_id, metadata={"other": "1"}, extra_headers=header)
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_two_tenants_can_use_the_same_idempotency_key(server: Server, client: openai.OpenAI) -> None:
    """Also when both send it again: neither is given, or refused because of, what is the other's."""
    header = {"Idempotency-Key": "of both"}
    with server.client("another-tenant") as other:
        requested = [(tenant, upload(server, tenant)) for tenant in (client, other)]
        made = [create(tenant, file, extra_headers=header).id for tenant, file in requested]
        again = [create(tenant, file, extra_headers=header).id for tenant, file in requested]
    assert again == made
    assert made[0] != made[1]


def test_a_refused_creation_does_not_use_up_its_key(server: Server, client: openai.OpenAI) -> None:
    header = {"Idempotency-Key": "k"}
    with pytest.raises(openai.NotFoundError):
        create(client, "file-unknown", extra_headers=header)
    assert create(client, upload(server, client), extra_headers=header).status == "in_progress"


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_without_sense_is_refused(server: Server, client: openai.OpenAI, key: str) -> None:
    with pytest.raises(openai.BadRequestError):
        create(client, upload(server, client), extra_headers={"Idempotency-Key": key})


# Lists


def test_two_hundred_and_fifty_batches_are_paged_through_newest_first(
    server: Server, client: openai.OpenAI
) -> None:
    tenant = tenant_of(server, client)

    async def many(db: Session) -> list[str]:
        file_id = await a_file(db, {"model": 1}, tenant=tenant)
        return [
            ids.show(ids.BATCH, (await a_batch(db, file_id=file_id, tenant=tenant)).id) for _ in range(250)
        ]

    made = act(server, many)
    newest_first = made[::-1]
    assert [batch.id for batch in client.batches.list()] == newest_first
    assert [batch.id for batch in client.batches.list(limit=100)] == newest_first
    page = client.batches.list(limit=100)
    assert page.has_more
    assert len(page.data) == 100
    last = client.batches.list(limit=100, after=newest_first[199])
    assert [batch.id for batch in last.data] == newest_first[200:]
    assert not last.has_more
    assert client.batches.list(after=newest_first[-1]).data == []
    assert len(client.batches.list().data) == 20

    async def paged() -> list[str]:
        async with server.async_client(key=client.api_key) as other:
            return [batch.id async for batch in other.batches.list(limit=37)]

    assert asyncio.run(paged()) == newest_first


def test_a_list_names_its_first_and_last(server: Server, client: openai.OpenAI) -> None:
    with server.http(client.api_key) as http:
        assert http.get("/v1/batches").json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        file_id = upload(server, client)
        made = [create(client, file_id).id for _ in range(3)]
        page = http.get("/v1/batches", params={"limit": 2}).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)


@pytest.mark.parametrize("limit", [0, 101, -1, "many"])
def test_a_limit_out_of_bounds_is_refused(client: openai.OpenAI, limit: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.list(limit=limit)
    assert envelope(refused.value)["param"] == "limit"


def test_an_unknown_cursor_is_refused(client: openai.OpenAI) -> None:
    for after in ("batch_nonsense", ids.show(ids.BATCH, ids.new_id())):
        with pytest.raises(openai.NotFoundError) as refused:
            client.batches.list(after=after)
        assert envelope(refused.value)["param"] == "after"


# Life


def test_a_running_batch_names_the_file_that_it_will_have(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=2))
    planned = batch.output_file_id
    assert planned is not None

    act(server, lambda db: complete_and_finalize(db, server, batch))
    ended = is_valid(client.batches.retrieve(batch.id))
    assert ended.status == "completed"
    assert ended.output_file_id == planned
    assert ended.error_file_id is None
    assert ended.completed_at is not None
    assert ended.finalizing_at is not None
    assert ended.usage is not None
    assert (ended.usage.input_tokens, ended.usage.output_tokens, ended.usage.total_tokens) == (6, 10, 16)
    assert_well(server, ended)


def test_a_batch_whose_items_all_failed_has_completed_without_an_output_file(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, model=2))

    act(server, lambda db: fail_and_finalize(db, server, batch))
    ended = is_valid(client.batches.retrieve(batch.id))
    assert (ended.status, ended.output_file_id) == ("completed", None)
    assert ended.error_file_id is not None
    assert ended.request_counts is not None
    assert ended.request_counts.failed == 2


def test_the_output_expires_as_requested(server: Server, client: openai.OpenAI) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    requested = create(client, upload(server, client, model=1), output_expires_after=expiry)
    act(server, lambda db: complete_and_finalize(db, server, requested))
    usual = create(client, upload(server, client, model=1))
    act(server, lambda db: complete_and_finalize(db, server, usual))
    assert act(server, lambda db: kept_for(db, requested)) == timedelta(seconds=7200)
    assert act(server, lambda db: kept_for(db, usual)) == timedelta(days=30)


def test_a_cancelled_batch_keeps_its_partial_results(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=5))
    tenant_worker = a_worker()

    async def some(db: Session) -> None:
        await complete(db, tenant_worker, (await take(db, tenant_worker, 2)))

    act(server, some)
    cancelling = is_valid(client.batches.cancel(batch.id))
    assert cancelling.status == "cancelling"
    assert cancelling.cancelling_at is not None
    assert client.batches.cancel(batch.id).cancelling_at == cancelling.cancelling_at

    act(server, lambda db: finalize_one(db, server.objects, tenant_worker, uuid_of(batch)))
    ended = is_valid(client.batches.retrieve(batch.id))
    assert ended.status == "cancelled"
    assert ended.output_file_id is not None
    assert ended.error_file_id is not None
    assert ended.request_counts is not None
    assert (ended.request_counts.completed, ended.request_counts.total) == (2, 5)
    assert client.batches.cancel(batch.id).status == "cancelled", "asked again, it is the same"
    assert_well(server, ended)


def test_a_batch_that_has_ended_cannot_be_cancelled_and_a_retry_cannot_help(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, model=1))

    act(server, lambda db: complete_and_finalize(db, server, batch))
    failed_batch = create(client, upload(server, client), endpoint="/v1/embeddings")
    for ended in (batch, failed_batch):
        with pytest.raises(openai.ConflictError) as refused:
            client.batches.cancel(ended.id)
        assert refused.value.response.headers["x-should-retry"] == "false"
        envelope(refused.value)


def test_an_expired_batch_keeps_its_partial_results(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=3))

    act(server, lambda db: expire_with_one_result(db, server, batch))
    ended = is_valid(client.batches.retrieve(batch.id))
    assert ended.status == "expired"
    assert ended.expired_at is not None
    assert ended.output_file_id is not None
    assert ended.error_file_id is not None


def test_a_paused_batch_is_in_progress_to_the_client(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client))
    assert act(server, lambda db: batches.close(db, uuid_of(batch), "pause"))
    assert client.batches.retrieve(batch.id).status == "in_progress"
    assert client.batches.cancel(batch.id).status == "cancelling"


async def test_of_two_finalizers_only_the_one_that_committed_reports_the_end_of_the_batch(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, await asyncio.to_thread(upload, server, client, model=1))

    class Overtaken:
        """At the last moment another worker takes the batch over and ends it."""

        def __init__(self, db: Session) -> None:
            self.db = db

        async def reached(self, point: str) -> None:
            if point != "committing":
                return
            async with Session(server.database, "rival") as rival:
                await sql(rival, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
                assert await finalize_one(rival, server.objects, a_worker("rival"), uuid_of(batch))

    async with Session(server.database, "test") as db:
        worker = a_worker()
        await run_to_the_end(db, worker)
        assert await finalize_one(db, server.objects, worker, uuid_of(batch), Overtaken(db)) is None
        ended = await read(db, uuid_of(batch))
        assert ended.output_file_id == ended.planned_output_id
        ((key,),) = await sql(
            db, "SELECT object_key FROM batchline.files WHERE id = %(id)s", id=ended.output_file_id
        )
        assert await server.objects.exists(key)


# Strangers


def test_another_tenants_batch_is_not_found_anywhere(server: Server, client: openai.OpenAI) -> None:
    file_id = upload(server, client)
    batch = create(client, file_id)
    with server.client("stranger") as stranger:
        for attempt in (
            lambda: stranger.batches.retrieve(batch.id),
            lambda: stranger.batches.cancel(batch.id),
            lambda: stranger.batches.list(after=batch.id),
            lambda: create(stranger, file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
        assert batch.id not in [found.id for found in stranger.batches.list()]
    assert client.batches.retrieve(batch.id).status == "in_progress"


@pytest.mark.parametrize("batch_id", ["nonsense", "batch_", "%2e%2e", "batch_" + "f" * 5000, "\u2603"])
def test_a_malformed_batch_id_is_not_found(client: openai.OpenAI, batch_id: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(batch_id)


# Models


def test_the_models_are_those_of_the_upstreams(server_url: str, template: str, tmp_path: Path) -> None:
    settings = ServerSettings(
        upstreams=(
            UpstreamSettings("gpu", "http://127.0.0.1:9", models=("org/large", "small")),
            UpstreamSettings("cpu", "http://127.0.0.1:9", models=("tiny",)),
        )
    )
    with database(server_url, template) as url, serving(url, tmp_path, settings) as server:
        client = server.client()
        assert {model.id: model.owned_by for model in client.models.list()} == {
            "org/large": "gpu",
            "small": "gpu",
            "tiny": "cpu",
        }
        assert client.models.retrieve("org/large").owned_by == "gpu"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("unknown")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("*")


def test_an_upstream_for_all_models_serves_only_the_models_that_it_lists(
    database_url: str, tmp_path: Path
) -> None:
    with simulated() as upstream:
        anything = UpstreamSettings("any", upstream.url)
        settings = ServerSettings(upstreams=(anything,), sessions=4, streams=2)
        with serving(database_url, tmp_path, settings) as server:
            client = server.client()
            # If the upstream was late, the server requests its list again after a while.
            listed = wait_for("the upstream's models", lambda: client.models.list().data)
            for model in listed:
                assert client.models.retrieve(model.id).owned_by == "any"
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("nope")


def test_a_batch_of_videos_is_taken(server: Server, client: openai.OpenAI) -> None:
    line = {"custom_id": "v", "method": "POST", "url": "/v1/videos", "body": {"model": "m", "prompt": "x"}}
    file = client.files.create(file=("v.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/videos",
        completion_window="24h",
    )
    assert (batch.endpoint, batch.errors) == ("/v1/videos", None)


def test_an_unreachable_upstream_lists_no_models_and_delays_no_request(client: openai.OpenAI) -> None:
    assert client.models.list().data == []


# Bodies that mean harm


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b"null", 400),
        (b'{"input_file_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", 400),
        (b'{"input_file_id": ' + b"9" * 10_000 + b"}", 400),
        (b'{"input_file_id": "\\ud800", "endpoint": "x", "completion_window": "24h"}', 400),
        (b'{"\\ud800": 1}', 400),
        (b"\xff\xfe", 400),
        (b" " * (1024 * 1024 + 1), 413),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_in_the_envelope(
    server: Server, client: openai.OpenAI, body: bytes, status: int
) -> None:
    with server.http(client.api_key) as http:
        answer = http.post("/v1/batches", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_without_a_length_is_cut_off_at_the_limit(server: Server, client: openai.OpenAI) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 64 * 1024

    with server.http(client.api_key) as http:
        answer = http.post("/v1/batches", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_every_answer_names_its_request(client: openai.OpenAI) -> None:
    assert client.batches.with_raw_response.list().headers["x-request-id"].startswith("req_")


def assert_well(server: Server, batch: OpenAIBatch) -> None:
    report = act(
        server,
        lambda db: doctor.examine(db, batch_id=uuid_of(batch), object_exists=server.objects.exists),
    )
    assert report.clean, report.findings


# Items


def test_counts_of_all_states_add_up_and_openais_types_still_hold(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, model=8))

    async def some(db: Session) -> None:
        worker = a_worker()
        items = await take(db, worker, 5, Scope(batch_id=uuid_of(batch)))
        await spans.settle(db, worker.id, [completed(items[0]), failed(items[1]), retry(items[2], LATER)])

    act(server, some)
    running = is_valid(client.batches.retrieve(batch.id))
    counts = {"total": 8, "completed": 1, "failed": 1, "pending": 3, "in_progress": 2, "retrying": 1}
    assert running.request_counts is not None
    assert running.request_counts.model_dump() == counts | {"cancelled": 0, "expired": 0}
    cancelling = is_valid(client.batches.cancel(batch.id))
    assert cancelling.request_counts is not None
    assert cancelling.request_counts.model_dump() == counts | {"pending": 0, "cancelled": 3, "expired": 0}
    (listed,) = client.batches.list(limit=1).data
    assert listed.request_counts == cancelling.request_counts


def test_the_attempts_of_an_item_can_be_read_by_its_tenant(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=2))

    async def some(db: Session) -> str:
        worker = a_worker()
        (item, *_) = await take(db, worker, 5, Scope(batch_id=uuid_of(batch)))
        await spans.settle(db, worker.id, [retry(item, LATER)])
        return item.custom_id.decode()

    custom_id = act(server, some)
    path = f"/batches/{batch.id}/attempts"

    def attempts(as_client: openai.OpenAI, custom_id: str | None) -> Any:
        params = {} if custom_id is None else {"custom_id": custom_id}
        return as_client.get(path, cast_to=object, options={"params": params})

    item = attempts(client, custom_id)
    (failed_attempt,) = item.pop("attempts")
    assert (item["custom_id"], item["batch_id"], item["line"]) == (custom_id, batch.id, 1)
    assert (item["state"], item["attempt"]) == ("retrying", 2)
    assert (failed_attempt["attempt"], failed_attempt["error_code"]) == (1, "rate_limit")
    assert failed_attempt["message"] == "slow down"
    assert failed_attempt["not_before"] == item["not_before"] == failed_attempt["created_at"] + int(LATER)
    for missing in ("no-such-line", "", "\0"):
        with pytest.raises(openai.NotFoundError) as refused:
            attempts(client, missing)
        assert envelope(refused.value)["param"] == "custom_id"
    with pytest.raises(openai.BadRequestError) as invalid:
        attempts(client, None)
    assert envelope(invalid.value)["param"] == "custom_id"
    with pytest.raises(openai.NotFoundError):
        attempts(server.client("another"), custom_id)


def test_a_batch_says_why_its_items_failed(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=4))

    def extension(as_client: openai.OpenAI) -> Any:
        return as_client.batches.retrieve(batch.id).model_dump()["batchline"]

    assert extension(client)["failures"] == []

    async def some(db: Session) -> None:
        worker = a_worker()
        items = await take(db, worker, 4, Scope(batch_id=uuid_of(batch)))
        await spans.settle(db, worker.id, [failed(items[0]), failed(items[1]), retry(items[2], LATER)])

    act(server, some)
    rows = extension(client)["failures"]
    assert [
        (row["code"], row["message"], row["count"], row["retrying"], row["example_custom_id"]) for row in rows
    ] == [
        ("http_400", "Bad Request", 2, 0, "line-1"),
        ("rate_limit", "slow down", 0, 1, "line-3"),
    ]
    assert all(len(row["key"]) == 12 for row in rows)
    # Lists stay one statement each, and OpenAI's own fields stay as they are.
    (listed,) = client.batches.list().data
    assert listed.model_dump()["batchline"]["failures"] is None
    with pytest.raises(openai.NotFoundError):
        extension(server.client("another"))

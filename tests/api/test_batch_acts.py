"""Pause, resume and priority of /v1/batches, and what /api/v1/dashboard does with one batch and with many."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch as OpenAIBatch

from batchline.governance import bulk_actions
from batchline.model import BatchStatus, Role, ids
from batchline.store.session import Session
from tests.support.builders import read
from tests.support.governance import some_rules
from tests.support.openai_batches import act, create, envelope, is_valid, upload, uuid_of
from tests.support.scenes import database
from tests.support.serving import Server, serving

DASHBOARD = "/api/v1/dashboard"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def key(server: Server) -> str:
    """Of a tenant of its own."""
    return server.key(ids.new_id().hex)


@pytest.fixture
def client(server: Server, key: str) -> Iterator[openai.OpenAI]:
    with server.client(key=key) as client:
        yield client


@pytest.fixture
def http(server: Server, key: str) -> Iterator[httpx2.Client]:
    with server.http(key) as client:
        yield client


@pytest.fixture
def stranger(server: Server) -> Iterator[httpx2.Client]:
    with server.http(server.key(ids.new_id().hex, Role.ADMIN)) as client:
        yield client


def extension(batch: OpenAIBatch) -> dict[str, Any]:
    found: dict[str, Any] = batch.model_dump()["batchline"]
    return found


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def work_off(server: Server) -> None:
    """As a worker does it."""

    async def work(db: Session) -> None:
        while await bulk_actions.continue_one(some_rules(), db):
            pass

    act(server, work)


# /v1/batches


def test_a_batch_is_paused_and_resumed(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client))
    paused = is_valid(client.post(f"/batches/{batch.id}/pause", cast_to=OpenAIBatch))
    assert (paused.status, extension(paused)["paused"]) == ("in_progress", True)
    assert act(server, lambda db: read(db, uuid_of(batch))).status is BatchStatus.PAUSED
    with pytest.raises(openai.ConflictError) as error:
        client.post(f"/batches/{batch.id}/pause", cast_to=OpenAIBatch)
    assert envelope(error.value)["code"] == "cannot_pause"
    resumed = client.post(f"/batches/{batch.id}/resume", cast_to=OpenAIBatch)
    assert extension(resumed)["paused"] is False
    with pytest.raises(openai.ConflictError) as error:
        client.post(f"/batches/{batch.id}/resume", cast_to=OpenAIBatch)
    assert envelope(error.value)["code"] == "cannot_resume"


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_a_batch_of_another_tenant_is_not_found(
    server: Server, client: openai.OpenAI, stranger: httpx2.Client, what: str
) -> None:
    batch = create(client, upload(server, client))
    assert code(stranger.post(f"/v1/batches/{batch.id}/{what}")) == (404, "not_found")


def test_a_batch_is_created_with_a_priority(server: Server, client: openai.OpenAI) -> None:
    file = upload(server, client)
    assert extension(create(client, file))["priority"] == 0
    assert extension(create(client, file, extra_body={"priority": 7}))["priority"] == 7
    with pytest.raises(openai.BadRequestError) as error:
        create(client, file, extra_body={"priority": 101})
    assert envelope(error.value)["param"] == "priority"


def test_another_priority_is_another_request_under_the_same_idempotency_key(
    server: Server, client: openai.OpenAI
) -> None:
    file = upload(server, client)
    once = {"extra_headers": {"Idempotency-Key": "once"}}
    create(client, file, extra_body={"priority": 7}, **once)
    with pytest.raises(openai.UnprocessableEntityError):
        create(client, file, **once)


# One batch


def test_a_batch_is_changed_while_it_runs(server: Server, client: openai.OpenAI, http: httpx2.Client) -> None:
    path = f"{DASHBOARD}/batches/{create(client, upload(server, client)).id}"
    deadline = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)
    changed = http.patch(path, json={"priority": 5, "concurrency": 2, "deadline": deadline.isoformat()})
    assert changed.status_code == 200, changed.text
    answer = changed.json()
    assert (answer["priority"], answer["concurrency"]) == (5, 2)
    assert datetime.fromisoformat(answer["deadline"]) == deadline
    answer = http.patch(path, json={"concurrency": None}).json()
    assert (answer["priority"], answer["concurrency"]) == (5, None)
    assert http.patch(path, json={"deadline": None}).json()["deadline"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"priority": 101}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"concurrency": 0}, "concurrency"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"prioritty": 1}, "prioritty"),
    ],
)
def test_a_change_that_makes_no_sense_is_a_bad_request(
    server: Server, client: openai.OpenAI, http: httpx2.Client, body: dict[str, Any], param: str | None
) -> None:
    batch = create(client, upload(server, client))
    answer = http.patch(f"{DASHBOARD}/batches/{batch.id}", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_each_act_answers_with_the_batch_or_says_why_not(
    server: Server, client: openai.OpenAI, http: httpx2.Client, stranger: httpx2.Client
) -> None:
    batch = create(client, upload(server, client))
    path = f"{DASHBOARD}/batches/{batch.id}"
    for name in ("cancel", "pause", "resume", "retry", "delete"):
        assert code(stranger.post(f"{path}/{name}")) == (404, "BATCH_NOT_FOUND")
    assert http.post(f"{path}/pause").json()["status"] == "paused"
    assert http.post(f"{path}/resume").json()["status"] == "in_progress"
    assert code(http.post(f"{path}/retry", json={"causes": ["0123456789ab"]})) == (409, "BATCH_IN_PROGRESS")
    assert code(http.post(f"{path}/retry", json={"causes": ["x"]})) == (400, "INVALID_REQUEST")
    assert code(http.post(f"{path}/delete")) == (409, "CANNOT_DELETE")
    assert http.post(f"{path}/cancel").json()["status"] == "cancelling"
    assert http.post(f"{path}/explode").status_code == 400


# Many batches


def test_an_action_is_previewed_started_watched_and_listed(
    server: Server, client: openai.OpenAI, http: httpx2.Client, stranger: httpx2.Client
) -> None:
    file = upload(server, client)
    made = [create(client, file).id for _ in range(3)]
    wanted = {"action": "pause", "filter": {"status": "in_progress,paused"}}
    preview = http.post(f"{DASHBOARD}/actions", json={**wanted, "preview": True})
    assert preview.status_code == 200, preview.text
    assert preview.json() == {
        "matching": 3,
        "exact": True,
        "sample": [
            {"id": each, "name": "input.jsonl", "status": "in_progress", "total": 3}
            for each in reversed(made)
        ],
        "consequence": {"not_started": 9, "in_flight": 0},
    }
    assert http.get(f"{DASHBOARD}/actions").json()["data"] == []
    started = http.post(f"{DASHBOARD}/actions", json=wanted)
    assert started.status_code == 202
    action = started.json()
    assert (action["state"], action["matching"], action["done"]) == ("running", 3, 0)
    work_off(server)
    path = f"{DASHBOARD}/actions/{action['id']}"
    ended = http.get(path).json()
    assert (ended["state"], ended["done"], ended["failed"]) == ("completed", 3, [])
    assert ended["filter"]["status"] == ["in_progress", "paused"]
    assert [each["id"] for each in http.get(f"{DASHBOARD}/actions").json()["data"]] == [action["id"]]
    assert code(http.post(f"{path}/cancel")) == (409, "CANNOT_CANCEL")
    assert code(stranger.get(path)) == (404, "ACTION_NOT_FOUND")
    assert code(stranger.post(f"{path}/cancel")) == (404, "ACTION_NOT_FOUND")
    assert stranger.get(f"{DASHBOARD}/actions").json()["data"] == []


def test_an_action_names_what_it_could_not_do_and_is_cancelled(
    server: Server, client: openai.OpenAI, http: httpx2.Client
) -> None:
    batch = create(client, upload(server, client))
    resume = {"action": "resume", "filter": {"ids": [batch.id]}}
    action = http.post(f"{DASHBOARD}/actions", json=resume).json()
    work_off(server)
    ended = http.get(f"{DASHBOARD}/actions/{action['id']}").json()
    assert (ended["failed_count"], ended["failed"]) == (
        1,
        [{"id": batch.id, "reason": "The batch cannot be resumed: it is in_progress."}],
    )
    action = http.post(f"{DASHBOARD}/actions", json=resume).json()
    assert http.post(f"{DASHBOARD}/actions/{action['id']}/cancel").json()["state"] == "cancelled"
    following = http.get(f"{DASHBOARD}/actions", params={"limit": 1}).json()
    assert following["data"][0]["id"] == action["id"]
    older = http.get(f"{DASHBOARD}/actions", params={"limit": 1, "cursor": following["next"]}).json()
    assert (older["data"][0]["id"], older["next"]) == (ended["id"], None)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "pause"},
        {"action": "explode", "filter": {}},
        {"action": "pause", "filter": {"colour": "red"}},
        {"action": "pause", "filter": {"status": "gone"}},
        {"action": "pause", "filter": {"tenant": "another"}},
        {"action": "pause", "filter": {"ids": ["batch_x"]}},
        {"action": "priority", "filter": {}},
        {"action": "priority", "filter": {}, "value": 1000},
    ],
)
def test_an_action_that_makes_no_sense_is_a_bad_request(http: httpx2.Client, body: dict[str, Any]) -> None:
    assert http.post(f"{DASHBOARD}/actions", json=body).status_code == 400


def test_an_action_needs_a_key(server: Server) -> None:
    with server.http() as anybody:
        assert anybody.post(f"{DASHBOARD}/actions", json={}).status_code == 401
        assert anybody.patch(f"{DASHBOARD}/batches/batch_1", json={}).status_code == 401

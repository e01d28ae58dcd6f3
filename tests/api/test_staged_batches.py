"""Staged execution over HTTP: dry runs, steps, samples and their approval, downloads, and events."""

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from batchline.model import Role
from batchline.store import spans, steps
from batchline.store.session import Session
from tests.support.builders import a_worker, completed, failed, read, take
from tests.support.governance import items, production, work
from tests.support.openai_batches import act, create, envelope, upload, uuid_of
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, refused, submit
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.webhook_receiver import Received, receiving
from tests.support.webhooks import outbox


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = replace(SETTINGS, allow_private_webhooks=True)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings, REGISTRY) as running,
    ):
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return Tenant(server)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as running:
        yield running


def run(server: Server, *, failures: set[int] | None = None) -> list[int]:
    """Run what may run, and begin the next steps, as a worker does."""

    async def act_as_worker(db: Session) -> list[int]:
        ran = await work(db, failures=failures or set(), end=False)
        for batch_id in await steps.due(db):
            await steps.begin(db, batch_id)
        return ran

    return act(server, act_as_worker)


def get(client: httpx2.Client, batch_id: str) -> dict[str, Any]:
    answer = client.get(f"/batches/{batch_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# Governed batches


def test_a_dry_run_of_a_submission_answers_200_and_creates_nothing(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        path = "/operations/resize/batches"
        answer = anna.post(path, json={"items": production(2), "validate_only": True, "steps": "1,2,..."})
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"valid": True, "child_count": 2, "approval": "pending", "batch_id": None}
        assert "location" not in answer.headers
        assert anna.get("/batches").json()["data"] == []
        wrong = {"items": [{"vm": 1}], "validate_only": True}
        refused(anna.post(path, json=wrong), 400, "INVALID_BATCH_REQUEST")
        refused(
            anna.post("/operations/none/batches", json={"items": [{}], "validate_only": True}),
            404,
            "OPERATION_NOT_FOUND",
        )
        assert anna.post(
            "/vms/batch/power", json={"operation": "stop", "items": [{}], "validate_only": True}
        ).json()["valid"]


def test_a_governed_batch_runs_in_steps_and_stops(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        batch_id = submit(anna, 10, steps="1,2,4,...", step_pause_seconds=0, max_failed="30%")["batch_id"]
        found = get(anna, batch_id)
        assert found["steps"] == {
            "sizes": "1,2,4,...",
            "pause_seconds": 0.0,
            "sample": None,
            "step": 1,
            "lines_begun": 1,
            "next_step_at": None,
        }
        assert run(server) == [1]
        assert run(server, failures={2}) == [2, 3], "one of three, and three tenths may fail"
        stopped = get(anna, batch_id)
        assert (stopped["paused"], stopped["paused_by"], stopped["failed_count"]) == (True, "max_failed", 1)
        assert run(server) == []
        assert anna.post(f"/batches/{batch_id}/resume").json()["steps"]["lines_begun"] == 7
        assert run(server) == [4, 5, 6, 7]
        assert run(server) == [8, 9, 10]


def test_a_sample_is_approved_by_its_digest(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        batch_id = submit(anna, 10, sample=2)["batch_id"]
        assert get(carla, batch_id)["approval"]["content_digest"] is None, "there is nothing to decide on"
        ran = run(server)
        waiting = get(carla, batch_id)
        assert (waiting["status"], len(ran)) == ("PENDING_APPROVAL", 2)
        digest = waiting["approval"]["content_digest"]
        path = f"/batches/{batch_id}/approve"
        refused(carla.post(path), 400, "CONTENT_DIGEST_REQUIRED")
        refused(carla.post(path, json={"content_digest": "0" * 64}), 409, "BATCH_CHANGED")
        refused(anna.post(path, json={"content_digest": digest}), 403, "PERMISSION_DENIED")
        approved = carla.post(path, json={"content_digest": digest})
        assert approved.status_code == 200, approved.text
        assert approved.json()["approval"]["content_digest"] == digest
        assert len(run(server)) == 8
        assert get(anna, batch_id)["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"steps": "none"}, "steps"),
        ({"steps": 5}, "steps"),
        ({"step_pause_seconds": 10}, "step_pause_seconds"),
        ({"step_pause_seconds": -1, "steps": "1"}, "step_pause_seconds"),
        ({"max_failed": "x"}, "max_failed"),
        ({"max_failed": -1}, "max_failed"),
        ({"sample": 0}, "sample"),
        ({"validate_only": "yes"}, "validate_only"),
    ],
)
def test_wrong_staging_is_a_400_that_names_the_parameter(
    server: Server, client: openai.OpenAI, tenant: Tenant, more: dict[str, Any], param: str
) -> None:
    with tenant.caller("anna") as anna:
        error = refused(
            anna.post("/operations/resize/batches", json={"items": items(3), **more}),
            400,
            "INVALID_BATCH_REQUEST",
        )
        assert param in str(error["param"])
    with pytest.raises(openai.BadRequestError) as raised:
        create(client, upload(server, client), extra_body=more)
    assert param in str(envelope(raised.value)["param"])


def download(client: httpx2.Client, batch_id: str, **query: Any) -> httpx2.Response:
    return client.get(f"/batches/{batch_id}/download", params=query)


def test_failed_and_unstarted_children_are_downloads(server: Server, tenant: Tenant) -> None:
    secret = [{"vm": f"=vm-{n}", "password": "swordfish"} for n in range(1, 8)]
    with tenant.caller("anna") as anna, tenant.caller("bert") as bert:
        batch_id = submit(anna, secret, steps="4")["batch_id"]
        run(server, failures={2, 3})
        answer = download(anna, batch_id, which="failed")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "attachment" in answer.headers["content-disposition"]
        assert f"{batch_id}_failed.jsonl" in answer.headers["content-disposition"]
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [(row["sequence_no"], row["status"], row["attempt_count"]) for row in rows] == [
            (2, "FAILED", 1),
            (3, "FAILED", 1),
        ]
        assert rows[0]["item"] == {"vm": "=vm-2", "password": "***REDACTED***"}

        table = list(
            csv.DictReader(io.StringIO(download(anna, batch_id, which="unstarted", format="csv").text))
        )
        assert [row["sequence_no"] for row in table] == ["5", "6", "7"]
        assert [row["status"] for row in table] == ["PENDING"] * 3
        assert "swordfish" not in str(table)

        anna.post(f"/batches/{batch_id}/cancel")
        rows = [json.loads(line) for line in download(anna, batch_id, which="unstarted").text.splitlines()]
        assert [(row["sequence_no"], row["status"], row["error_code"]) for row in rows] == [
            (n, "CANCELLED", "BATCH_CANCELLED") for n in (5, 6, 7)
        ]
        empty = submit(anna, 1)["batch_id"]
        assert download(anna, empty, which="failed").text == ""
        assert download(anna, empty, which="failed", format="csv").text.startswith("sequence_no,custom_id,")
        refused(download(bert, batch_id, which="failed"), 404, "BATCH_NOT_FOUND")
        refused(download(anna, batch_id, which="all"), 400, "INVALID_BATCH_REQUEST")
        refused(download(anna, batch_id), 400, "INVALID_BATCH_REQUEST")
        run(server)


def test_many_failed_children_are_downloaded_page_by_page(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        batch_ids = [submit(anna, 50)["batch_id"] for _ in range(1)]
        run(server, failures=set(range(1, 51)))
        lines = download(anna, batch_ids[0], which="failed").text.splitlines()
        assert [json.loads(line)["sequence_no"] for line in lines] == list(range(1, 51))


# Ordinary batches


def extension(batch: Any) -> dict[str, Any]:
    return dict(batch.model_dump()["batchline"])


def test_a_dry_run_of_a_batch_says_what_is_wrong_with_its_file(server: Server, client: openai.OpenAI) -> None:
    good = upload(server, client, model=5)
    http = server.http(client.api_key)
    with http:
        body = {"input_file_id": good, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        headers = {"idempotency-key": "dry"}
        before = http.get("/v1/batches").json()["data"]
        answer = http.post("/v1/batches", json={**body, "validate_only": True}, headers=headers)
        assert answer.json() == {
            "object": "batch.validation",
            "valid": True,
            "errors": None,
            "total": 5,
            "reused": 0,
        }
        wrong = http.post("/v1/batches", json={**body, "endpoint": "/v1/embeddings", "validate_only": True})
        assert (wrong.status_code, wrong.json()["valid"]) == (200, False)
        assert wrong.json()["errors"]["data"][0]["code"] == "url_mismatch"
        missing = {**body, "input_file_id": "file-" + "0" * 32, "validate_only": True}
        assert http.post("/v1/batches", json=missing).status_code == 404
        assert http.get("/v1/batches").json()["data"] == before
        assert http.post("/v1/batches", json=body, headers=headers).json()["object"] == "batch"
    run(server)


def test_an_ordinary_batch_runs_in_steps_stops_and_is_resumed(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=20), extra_body={"steps": "1,2,4,..."})
    assert extension(batch)["steps"]["lines_begun"] == 1

    async def one_step(db: Session) -> list[int]:
        worker = a_worker()
        ran = await take(db, worker)
        verdicts = [failed(item) if item.line_no == 2 else completed(item) for item in ran]
        await spans.settle(db, worker.id, verdicts)
        await steps.begin(db, uuid_of(batch))
        return [item.line_no for item in ran]

    assert act(server, one_step) == [1]
    assert act(server, one_step) == [2, 3]
    stopped = client.batches.retrieve(batch.id)
    assert stopped.status == "in_progress", "OpenAI's clients know no paused state"
    assert (extension(stopped)["paused"], extension(stopped)["paused_by"]) == (True, "max_failed")
    with server.http(client.api_key) as http:
        resumed = http.post(f"/v1/batches/{batch.id}/resume")
        assert resumed.json()["batchline"]["steps"]["lines_begun"] == 7
        again = http.post(f"/v1/batches/{batch.id}/resume")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "cannot_resume")
        assert act(server, one_step) == [4, 5, 6, 7]
        assert http.post(f"/v1/batches/{batch.id}/pause").json()["batchline"]["paused"]
        assert act(server, one_step) == []
        again = http.post(f"/v1/batches/{batch.id}/pause")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "cannot_pause")
        http.post(f"/v1/batches/{batch.id}/resume")
    assert act(server, one_step) == list(range(8, 16))
    assert act(server, one_step) == list(range(16, 21))
    assert act(server, lambda db: read(db, uuid_of(batch))).completed == 19


def test_pause_and_resume_are_refused_for_others(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client))
    with server.client("stranger") as other, server.http(other.api_key) as http:
        for call in ("pause", "resume"):
            assert http.post(f"/v1/batches/{batch.id}/{call}").status_code == 404
    run(server)


# Events


def test_webhooks_report_approvals_and_pauses(server: Server, tenant: Tenant) -> None:
    with (
        receiving() as receiver,
        tenant.caller("anna") as anna,
        tenant.caller("carla", Role.APPROVER) as carla,
    ):
        kinds = ["batch.approval_requested", "batch.approved", "batch.rejected", "batch.paused"]
        wanted = {"name": "ops", "url": receiver.url, "event_types": kinds}
        with server.http(server.key(tenant.name, Role.ADMIN, "emil")) as emil:
            assert emil.post("/v1/webhook_endpoints", json=wanted).status_code == 200
            assert set(kinds) <= set(emil.get("/v1/webhook_event_types").json()["data"])
        approved = submit(anna, production(2), max_failed=0)["batch_id"]
        rejected = submit(anna, production(1))["batch_id"]
        assert carla.post(f"/batches/{approved}/approve").status_code == 200
        assert carla.post(f"/batches/{rejected}/reject").status_code == 200

        async def deliver(db: Session) -> list[Received]:
            await work(db, failures={1, 2}, limit=1, end=False)
            async with outbox(db) as working:
                working.wake()
                return await asyncio.to_thread(receiver.wait_for, 5)

        received = act(server, deliver)
        events = {(got.event["type"], got.event["data"]["id"]) for got in received}
        assert events == {
            ("batch.approval_requested", approved),
            ("batch.approval_requested", rejected),
            ("batch.approved", approved),
            ("batch.rejected", rejected),
            ("batch.paused", approved),
        }

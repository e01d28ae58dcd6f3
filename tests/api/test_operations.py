"""/api/v1 over HTTP: every endpoint, every refusal with its code, and who sees what."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx2
import pytest

from batchline.executors.approvals import Approvals
from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor
from batchline.governance.approvals import APPROVE
from batchline.governance.operations import APPROVALS
from batchline.governance.rules import Rules
from batchline.model import Failed, Role, TimedOut
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_worker, on, sql, take
from tests.support.governance import GENEROUS, RESIZE, end_all, is_sound, items, production, work
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, refused, submit
from tests.support.scenes import database
from tests.support.serving import Server, serving

T = TypeVar("T")


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return Tenant(server)


def act(server: Server, scenario: Callable[[Session], Awaitable[T]]) -> T:
    return on(server.database, scenario)


def get(client: httpx2.Client, batch_id: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/batches/{batch_id}", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def run_all(db: Session) -> None:
    while await work(db):
        pass


# Submit and look


def test_a_submission_is_accepted_with_the_place_to_look_for_it(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        answer = anna.post("/operations/resize/batches", json={"items": items(2), "reason": "growth"})
        assert answer.status_code == 202
        body = answer.json()
        assert set(body) == {"batch_id", "status", "status_url", "retry_after_seconds"}
        assert body["status"] == "IN_PROGRESS"
        assert answer.headers["location"] == body["status_url"] == f"/api/v1/batches/{body['batch_id']}"
        assert isinstance(body["retry_after_seconds"], int)
        found = get(anna, body["batch_id"])
        assert (found["batch_type"], found["created_by"], found["reason"]) == ("resize", "anna", "growth")
        assert [child["status"] for child in found["children"]] == ["PENDING", "PENDING"]
        act(tenant.server, run_all)


def test_counts_and_children_report_partial_success_and_add_up(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna:
        batch_id = submit(anna, 4)["batch_id"]
        act(server, lambda db: work(db, failures={2}))
        found = get(anna, batch_id)
        assert found["status"] == "PARTIAL_SUCCESS"
        counts = [found[f"{name}_count"] for name in ("success", "failed", "pending", "cancelled")]
        assert (counts, sum(counts)) == ([3, 1, 0, 0], found["child_count"])
        assert found["children"][1]["error"]["code"] == "http_400"
        assert found["children"][1]["attempt_count"] == 1


def test_children_are_paged(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        batch_id = submit(anna, 5)["batch_id"]
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = get(anna, batch_id, limit=2, after=after)
            seen += [child["sequence_no"] for child in page["children"]]
            after = page["next_after"]
        assert seen == [1, 2, 3, 4, 5]


def test_batches_are_listed_newest_first_in_pages(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        made = [submit(anna, 1)["batch_id"] for _ in range(3)]
        first = anna.get("/batches", params={"limit": 2}).json()
        rest = anna.get("/batches", params={"limit": 2, "after": first["next_after"]}).json()
        assert [batch["batch_id"] for batch in first["data"] + rest["data"]] == made[::-1]
        assert rest["next_after"] is None
        assert anna.get("/batches", params={"batch_type": "wipe"}).json()["data"] == []
        refused(anna.get("/batches", params={"after": "nonsense"}), 404, "BATCH_NOT_FOUND")


def test_batches_and_children_are_listed_by_status(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        partly = submit(anna, 4)["batch_id"]
        act(server, lambda db: work(db, failures={2, 3}))
        waiting = submit(anna, production())["batch_id"]
        for caller in (anna, emil):
            for status, expected in (
                ("PARTIAL_SUCCESS", [partly]),
                ("PENDING_APPROVAL", [waiting]),
                ("COMPLETED", []),
            ):
                data = caller.get("/batches", params={"status": status}).json()["data"]
                assert [batch["batch_id"] for batch in data] == expected
        first = get(anna, partly, status="FAILED", limit=1)
        assert [child["sequence_no"] for child in first["children"]] == [2]
        rest = get(anna, partly, status="FAILED", limit=1, after=first["next_after"])
        assert [child["sequence_no"] for child in rest["children"]] == [3]
        assert (rest["has_more"], rest["child_count"]) == (False, 4)
        refused(anna.get("/batches", params={"status": "failed"}), 400, "INVALID_BATCH_REQUEST")
        refused(anna.get(f"/batches/{partly}", params={"status": "?"}), 400, "INVALID_BATCH_REQUEST")


def test_a_batch_tells_when_it_changed_and_a_child_when_it_was_last_tried(
    server: Server, tenant: Tenant
) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna:
        batch_id = submit(anna, 1)["batch_id"]
        before = get(anna, batch_id)
        assert before["updated_at"] == before["created_at"]
        assert before["children"][0]["last_attempt_at"] is None
        act(server, lambda db: work(db, failures={1}))
        after = get(anna, batch_id)
        assert after["updated_at"] > before["updated_at"]
        assert after["children"][0]["last_attempt_at"] == after["children"][0]["finished_at"] is not None


def test_an_approver_reads_the_items_without_their_secrets(tenant: Tenant) -> None:
    item = {"vm": "a", "cpu": 4, "env": "production", "password": "hunter2", "pin": "hunter2"}
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        batch_id = submit(anna, [item])["batch_id"]
        answer = carla.get(f"/batches/{batch_id}")
        assert answer.json()["children"][0]["item"] == item | dict.fromkeys(
            ("password", "pin"), "***REDACTED***"
        )
        assert "hunter2" not in answer.text


def test_a_rotated_key_of_the_same_name_is_the_same_user(tenant: Tenant) -> None:
    with tenant.caller("anna") as old, tenant.caller("anna") as new:
        batch_id = submit(old, 1)["batch_id"]
        assert get(new, batch_id)["created_by"] == "anna"


# request_id


def test_a_replay_is_answered_with_the_first_batch_and_another_payload_with_422(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        request_id = str(uuid4())
        first = submit(anna, 2, request_id=request_id)
        assert submit(anna, 2, request_id=request_id) == first
        body = {"items": items(3), "request_id": request_id}
        refused(anna.post("/operations/resize/batches", json=body), 422, "REQUEST_ID_REUSED")
        for wrong in ("7", 7, "not-a-uuid"):
            strange = {"items": items(1), "request_id": wrong}
            refused(anna.post("/operations/resize/batches", json=strange), 400, "INVALID_BATCH_REQUEST")


# Refusals


def test_an_invalid_submission_is_refused_with_its_error_code(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        for body, code in (
            ({"items": []}, "INVALID_BATCH_REQUEST"),
            ({}, "INVALID_BATCH_REQUEST"),
            ({"items": "all"}, "INVALID_BATCH_REQUEST"),
            ({"items": [{"vm": 7}]}, "INVALID_BATCH_REQUEST"),
            ({"items": [{"vm": "a\0b"}]}, "INVALID_BATCH_REQUEST"),
            ({"items": items(1), "colour": "red"}, "INVALID_BATCH_REQUEST"),
            ({"items": items(1), "reason": "x" * 2001}, "INVALID_BATCH_REQUEST"),
            ({"items": items(51)}, "BATCH_SIZE_EXCEEDED"),
        ):
            refused(anna.post("/operations/resize/batches", json=body), 400, code)
        for broken in (b'{"items": [', b"[" * 100_000):
            typed = {"content-type": "application/json"}
            answer = anna.post("/operations/resize/batches", content=broken, headers=typed)
            refused(answer, 400, "INVALID_BATCH_REQUEST")
        refused(anna.post("/operations/paint/batches", json={"items": items(1)}), 404, "OPERATION_NOT_FOUND")
        assert anna.get("/batches").json()["data"] == []


def test_a_submission_that_is_refused_unread_is_counted_once_and_nothing_else_is(
    database_url: str, tmp_path: Path
) -> None:
    typed = {"content-type": "application/json"}
    maximum = SETTINGS.max_json_bytes
    with (
        serving(database_url, tmp_path, SETTINGS, REGISTRY) as server,
        Tenant(server).caller("anna", Role.ADMIN) as anna,
        server.http() as nobody,
    ):
        resize = "/operations/resize/batches"
        for content, status in (
            (b'{"items": [', 400),
            (b'{"items": "all"}', 400),
            (b'{"items": []}', 400),
            (b'{"items": [{"vm": "a\\u0000b"}]}', 400),
            (b" " * (maximum + 1), 413),
            (iter([b" " * maximum, b" "]), 413),
        ):
            answer = anna.post(resize, content=content, headers=typed)
            assert answer.status_code == status, answer.text
        for path in ("/operations/paint/batches", "/vms/batch", "/vms/batch/power", "/approvals/batch"):
            assert anna.post(path, json={}).status_code == 400
        batch_id = submit(anna, 1, hold=True)["batch_id"]
        # None of these is a submission.
        assert anna.post(f"/batches/{batch_id}/append", json={}).status_code == 400
        assert anna.post(f"/batches/{batch_id}/append", content=b" " * (maximum + 1)).status_code == 413
        assert anna.post("/operations//batches", content=b" " * (maximum + 1)).status_code == 413
        assert anna.get("/batches", params={"limit": 0}).status_code == 400
        assert anna.put(resize, json={}).status_code == 405
        assert nobody.post(f"/api/v1{resize}", json={}).status_code == 401
        anna.base_url = server.url
        lines = anna.get("/metrics").text.splitlines()
    assert sorted(line for line in lines if line.startswith("batch_submit_total{")) == [
        'batch_submit_total{batch_type="approve",result="invalid"} 1.0',
        'batch_submit_total{batch_type="resize",result="accepted"} 1.0',
        'batch_submit_total{batch_type="resize",result="invalid"} 6.0',
        'batch_submit_total{batch_type="unknown",result="invalid"} 3.0',
    ]


def test_a_refusal_names_the_item_and_no_secret(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        body = {"items": [{"vm": "a"}, {"vm": "b", "password": 1234567, "cpu": -1}]}
        error = refused(anna.post("/operations/resize/batches", json=body), 400, "INVALID_BATCH_REQUEST")
        assert "items[1].cpu" in error["message"]
        assert "1234567" not in error["message"]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_pending_parents": 1},
        {"user_pending_parents": 1},
        {"user_pending_children": 4},
        {"cooldown_seconds": 100},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_a_limit_answers_429_with_all_that_one_needs_to_know(
    database_url: str, tmp_path: Path, limits: dict[str, int]
) -> None:
    settings = replace(SETTINGS, limits=replace(SETTINGS.limits, contact_admin="ops@example.com", **limits))
    with serving(database_url, tmp_path, settings, REGISTRY) as server:
        tenant = Tenant(server)
        with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
            submit(anna, 3)
            answer = anna.post("/operations/resize/batches", json={"items": items(3)})
            error = refused(answer, 429, "RATE_LIMIT_EXCEEDED")
            (name,) = limits
            names = {"max_pending_parents": "global_pending_parents", "cooldown_seconds": "user_cooldown"}
            assert error["limit_type"] == names.get(name, name)
            assert error["max_value"] == limits[name]
            assert isinstance(error["current_value"], int)
            assert error["contact_admin"] == "ops@example.com"
            assert answer.headers["retry-after"] == str(error["retry_after"])
            assert int(answer.headers["retry-after"]) >= 1
            server_url = server.url
            emil.base_url = server_url
            text = emil.get("/metrics").text
            assert f'rate_limit_rejections_total{{limit_type="{error["limit_type"]}"}} 1.0' in text
            assert 'batch_submit_total{batch_type="resize",result="rate_limited"} 1.0' in text
            assert 'batch_submit_total{batch_type="resize",result="accepted"} 1.0' in text


def test_a_batch_with_more_children_than_the_limit_is_a_400_with_the_limit(
    database_url: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, limits=replace(SETTINGS.limits, user_pending_children=30))
    with serving(database_url, tmp_path, settings, REGISTRY) as server, Tenant(server).caller("anna") as anna:
        answer = anna.post("/operations/resize/batches", json={"items": items(31)})
        error = refused(answer, 400, "BATCH_SIZE_EXCEEDED")
        assert "31 children" in error["message"]
        assert "smaller batch" in error["message"]
        submit(anna, 30)


def test_too_many_requests_of_all_in_one_minute_are_refused(database_url: str, tmp_path: Path) -> None:
    limits = replace(SETTINGS.limits, requests_per_minute=5, user_requests_percent=100)
    settings = replace(SETTINGS, limits=limits)
    with serving(database_url, tmp_path, settings, REGISTRY) as server:
        tenant = Tenant(server)
        with tenant.caller("anna") as anna, tenant.caller("bert") as bert:
            answers = [client.get("/batches") for client in (anna, bert) * 6]
            # A new minute may begin in between.
            assert [answer.status_code for answer in answers[:5]] == [200] * 5
            answer = next(answer for answer in answers if answer.status_code == 429)
            error = refused(answer, 429, "RATE_LIMIT_EXCEEDED")
            assert error["limit_type"] == "global_requests_per_minute"
            assert 1 <= int(answer.headers["retry-after"]) <= 60


# Decisions and changes


def test_a_replay_is_answered_also_in_a_minute_with_too_many_requests(
    database_url: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, limits=replace(GENEROUS, requests_per_minute=5, user_requests_percent=100))
    body = {"items": items(1), "request_id": str(uuid4())}
    with serving(database_url, tmp_path, settings, REGISTRY) as server:
        # Not an admin: the limit of all users refuses no request of an admin.
        client = server.http(server.key("acme", Role.USER, "anna"))
        client.base_url = server.url
        admin = server.http(server.key("acme", Role.ADMIN, "boss"))
        admin.base_url = server.url
        with client as anna, admin as boss:

            def submit_again(**changes: Any) -> httpx2.Response:
                return anna.post("/api/v1/operations/resize/batches", json={**body, **changes})

            first = submit_again()
            # All of this minute's, and of the next should it begin meanwhile.
            on(
                database_url,
                lambda db: sql(
                    db,
                    "INSERT INTO batchline.api_windows (starts_at, requests, kind, tenant, user_id)"
                    " SELECT date_trunc('minute', now()) + n * interval '1 minute', 9, 'write', '', ''"
                    " FROM generate_series(0, 9) AS n"
                    " ON CONFLICT (starts_at, kind, tenant, user_id) DO UPDATE SET requests = 9",
                ),
            )
            again = submit_again()
            assert (again.status_code, again.json()) == (202, first.json())
            refused(submit_again(reason="another"), 422, "REQUEST_ID_REUSED")
            refused(submit_again(request_id=str(uuid4())), 429, "RATE_LIMIT_EXCEEDED")
            refused(submit_again(request_id=None), 429, "RATE_LIMIT_EXCEEDED")
            displayed = boss.get("/metrics").text
            assert 'batch_submit_total{batch_type="resize",result="rate_limited"} 2.0' in displayed
            assert 'rate_limit_rejections_total{limit_type="global_requests_per_minute"} 2.0' in displayed


def test_a_batch_goes_from_submission_over_approval_to_its_end(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        submitted = submit(anna, production(2), reason="more room")
        assert submitted["status"] == "PENDING_APPROVAL"
        batch_id = submitted["batch_id"]
        waiting = carla.get("/batches", params={"approval": "pending"}).json()["data"]
        assert [batch["batch_id"] for batch in waiting] == [batch_id]
        refused(carla.post(f"/batches/{batch_id}/approve", json={"child_count": 1}), 409, "BATCH_CHANGED")
        approved = carla.post(f"/batches/{batch_id}/approve", json={"reason": "fine", "child_count": 2})
        assert approved.status_code == 200
        assert approved.json()["approval"]["decided_by"] == "carla"
        assert approved.json()["approval"]["reason"] == "fine"
        refused(carla.post(f"/batches/{batch_id}/approve"), 409, "APPROVAL_NOT_PENDING")
        refused(carla.post(f"/batches/{batch_id}/reject"), 409, "APPROVAL_NOT_PENDING")
        act(server, lambda db: work(db, failures={1}))
        retried = anna.post(f"/batches/{batch_id}/retry")
        assert retried.status_code == 202
        assert retried.json()["pending_count"] == 1
        refused(anna.post(f"/batches/{batch_id}/retry"), 409, "RETRY_IN_PROGRESS")
        act(server, run_all)
        assert get(anna, batch_id)["status"] == "COMPLETED"
        refused(anna.post(f"/batches/{batch_id}/retry"), 409, "NOTHING_TO_RETRY")
        refused(anna.post(f"/batches/{batch_id}/cancel"), 409, "CANNOT_CANCEL")


def test_every_child_shows_the_reason_of_a_rejection(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        batch_id = submit(anna, production(2))["batch_id"]
        assert carla.post(f"/batches/{batch_id}/reject", json={"reason": "no"}).status_code == 200
        found = get(anna, batch_id)
        assert (found["status"], found["cancelled_count"]) == ("CANCELLED", 2)
        assert {child["error"]["message"] for child in found["children"]} == {
            "The batch was rejected by carla: no"
        }


def test_a_batch_is_held_grows_and_is_released_twice(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna:
        batch_id = submit(anna, 1, hold=True)["batch_id"]
        assert anna.post(f"/batches/{batch_id}/append", json={"items": items(2)}).json()["child_count"] == 3
        for _ in range(2):
            assert anna.post(f"/batches/{batch_id}/release").status_code == 200
        refused(anna.post(f"/batches/{batch_id}/append", json={"items": items(2)}), 409, "CANNOT_APPEND")
        act(server, run_all)
        assert get(anna, batch_id)["success_count"] == 3


def test_every_act_that_the_state_does_not_allow_has_its_own_error_code(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        batch_id = submit(anna, 2)["batch_id"]
        for act_name, code in (
            ("retry", "BATCH_IN_PROGRESS"),
            ("resume", "CANNOT_RESUME"),
            ("release", "CANNOT_RELEASE"),
        ):
            refused(anna.post(f"/batches/{batch_id}/{act_name}"), 409, code)
        refused(anna.post(f"/batches/{batch_id}/append", json={"items": items(1)}), 409, "CANNOT_APPEND")
        refused(carla.post(f"/batches/{batch_id}/approve"), 409, "APPROVAL_NOT_PENDING")
        assert anna.post(f"/batches/{batch_id}/pause").json()["paused"] is True
        refused(anna.post(f"/batches/{batch_id}/pause"), 409, "CANNOT_PAUSE")
        assert anna.post(f"/batches/{batch_id}/resume").json()["paused"] is False
        cancelled = anna.post(f"/batches/{batch_id}/cancel").json()
        assert (cancelled["status"], cancelled["cancelled_count"]) == ("CANCELLED", 2)
        assert anna.post(f"/batches/{batch_id}/cancel").json()["status"] == "CANCELLED"
        refused(anna.post(f"/batches/{batch_id}/pause"), 409, "CANNOT_PAUSE")
        refused(anna.post(f"/batches/{batch_id}/retry"), 409, "BATCH_CANCELLED")


# A non-owner, everywhere

ACTS = ("retry", "cancel", "approve", "reject", "pause", "resume", "append", "release")


def test_a_non_owner_finds_nothing_anywhere(server: Server, tenant: Tenant) -> None:
    with (
        tenant.caller("anna") as anna,
        tenant.caller("bert") as bert,
        Tenant(server).caller("fritz", Role.ADMIN) as stranger,
    ):
        batch_id = submit(anna, production(2), hold=True)["batch_id"]
        before = get(anna, batch_id)
        for client in (bert, stranger):
            refused(client.get(f"/batches/{batch_id}"), 404, "BATCH_NOT_FOUND")
            refused(client.get(f"/vms/batch/{batch_id}"), 404, "BATCH_NOT_FOUND")
            refused(client.post(f"/vms/batch/{batch_id}/retry"), 404, "BATCH_NOT_FOUND")
            for name in ACTS:
                body = {"items": items(1)} if name == "append" else None
                refused(client.post(f"/batches/{batch_id}/{name}", json=body), 404, "BATCH_NOT_FOUND")
            refused(client.get("/batches", params={"after": batch_id}), 404, "BATCH_NOT_FOUND")
            assert client.get("/batches").json()["data"] == []
        assert get(anna, batch_id) == before


def test_openai_routes_do_not_show_governed_batches(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("bert") as bert:
        batch_id = submit(anna, 1)["batch_id"]
        bert.base_url = server.url
        assert bert.get("/v1/batches").json()["data"] == []
        assert bert.get("/v1/files").json()["data"] == []
        assert bert.get(f"/v1/batches/{batch_id}").status_code == 404
        assert bert.post(f"/v1/batches/{batch_id}/cancel").status_code == 404


def test_roles_are_kept_apart(tenant: Tenant) -> None:
    with (
        tenant.caller("anna") as anna,
        tenant.caller("carla", Role.APPROVER) as carla,
        tenant.caller("emil", Role.ADMIN) as emil,
    ):
        batch_id = submit(anna, production())["batch_id"]
        own = submit(carla, production())["batch_id"]
        refused(anna.post(f"/batches/{batch_id}/approve"), 403, "PERMISSION_DENIED")
        refused(carla.post(f"/batches/{own}/approve"), 403, "PERMISSION_DENIED")
        refused(carla.post(f"/batches/{batch_id}/cancel"), 403, "PERMISSION_DENIED")
        assert get(carla, batch_id)["created_by"] == "anna"
        assert emil.post(f"/batches/{batch_id}/cancel").status_code == 200
        assert emil.post(f"/batches/{own}/approve").status_code == 200
        admins = submit(emil, production())["batch_id"]
        refused(emil.post(f"/batches/{admins}/approve"), 403, "PERMISSION_DENIED")


def test_a_call_without_a_key_is_refused_and_changes_nothing(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, server.http() as nobody:
        batch_id = submit(anna, 1)["batch_id"]
        for method, path in (
            ("GET", "/api/v1/batches"),
            ("GET", f"/api/v1/batches/{batch_id}"),
            ("POST", f"/api/v1/batches/{batch_id}/cancel"),
            ("GET", "/api/v1/operations"),
            ("GET", "/api/v1/admin/rate-limits/status"),
            ("GET", "/metrics"),
        ):
            assert nobody.request(method, path).status_code == 401
        answer = nobody.post("/api/v1/operations/resize/batches", json={"items": items(1)})
        assert answer.status_code == 401
        assert get(anna, batch_id)["status"] == "IN_PROGRESS"


# The seed's own paths


def test_the_vm_paths_go_the_same_way(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        answer = anna.post("/vms/batch", json={"operation": "create", "items": [{"name": "a"}]})
        assert answer.status_code == 202
        assert answer.json()["status"] == "PENDING_APPROVAL"
        url = answer.json()["status_url"]
        assert answer.headers["location"] == url
        assert url.startswith("/api/v1/vms/batch/batch_")
        batch_id = answer.json()["batch_id"]
        found = anna.get(f"/vms/batch/{batch_id}").json()
        assert found == get(anna, batch_id)
        assert found["batch_type"] == "vm_create"
        assert carla.post(f"/batches/{batch_id}/approve").status_code == 200
        act(server, lambda db: work(db, failures={1}))
        assert anna.post(f"/vms/batch/{batch_id}/retry").status_code == 202
        power = anna.post("/vms/batch/power", json={"operation": "stop", "items": [{}] * 50})
        assert power.status_code == 202
        assert get(anna, power.json()["batch_id"])["batch_type"] == "vm_stop"
        for path, body, code in (
            ("/vms/batch", {"operation": "paint", "items": [{}]}, "INVALID_BATCH_REQUEST"),
            ("/vms/batch", {"items": [{}]}, "INVALID_BATCH_REQUEST"),
            ("/vms/batch", {"operation": "delete", "items": [{}] * 11}, "BATCH_SIZE_EXCEEDED"),
            ("/vms/batch/power", {"operation": "start", "items": [{}] * 51}, "BATCH_SIZE_EXCEEDED"),
        ):
            refused(anna.post(path, json=body), 400, code)


def test_decisions_in_bulk_are_children_of_a_batch_of_their_own(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with (
        tenant.caller("anna") as anna,
        tenant.caller("carla", Role.APPROVER) as carla,
    ):
        good, bad = (submit(anna, production())["batch_id"] for _ in range(2))
        own = submit(carla, production())["batch_id"]
        body = {
            "items": [
                {"batch_id": good, "reason": "fine"},
                {"batch_id": bad, "decision": "reject"},
                {"batch_id": own},
                {"batch_id": "nonsense"},
            ]
        }
        refused(anna.post("/approvals/batch", json=body), 403, "PERMISSION_DENIED")
        refused(carla.post("/approvals/batch", json={"items": body["items"] * 6}), 400, "BATCH_SIZE_EXCEEDED")
        batch_id = carla.post("/approvals/batch", json=body).json()["batch_id"]
        act(server, lambda db: _decide(db, server.database))
        found = get(carla, batch_id)
        assert found["batch_type"] == "approve"
        reported = [(child["status"], (child["error"] or {}).get("code")) for child in found["children"]]
        assert reported == [
            ("SUCCEEDED", None),
            ("SUCCEEDED", None),
            ("FAILED", "PERMISSION_DENIED"),
            ("FAILED", "INVALID_BATCH_REQUEST"),
        ]
        assert get(anna, good)["approval"]["decided_by"] == "carla"
        assert get(anna, bad)["status"] == "CANCELLED"
        assert get(carla, own)["status"] == "PENDING_APPROVAL"
        act(server, run_all)


async def _decide(db: Session, url: str) -> None:
    """What a worker does with the decisions."""
    approvals = Approvals(url, Rules(REGISTRY, GENEROUS))
    http = HttpExecutor()
    executor = OperationExecutor(REGISTRY, (), http, http, {APPROVALS: approvals})
    worker = a_worker()
    taken = [item for item in await take(db, worker) if item.claim.model == APPROVE.name]
    verdicts = [await executor.run(item) for item in taken]
    await spans.settle(db, worker.id, [each for each in verdicts if not isinstance(each, TimedOut)])
    await executor.close()
    await approvals.close()
    await end_all(db)


def test_a_decision_of_a_user_whose_keys_are_revoked_fails(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        batch_id = submit(anna, production())["batch_id"]
        decision = carla.post("/approvals/batch", json={"items": [{"batch_id": batch_id}]}).json()["batch_id"]
        act(
            server,
            lambda db: sql(
                db,
                "UPDATE batchline.api_keys SET revoked_at = now() WHERE tenant = %(t)s AND name = 'carla'",
                t=tenant.name,
            ),
        )
        act(server, lambda db: _decide(db, server.database))
        assert get(anna, batch_id)["status"] == "PENDING_APPROVAL"
        with tenant.caller("emil", Role.ADMIN) as emil:
            assert get(emil, decision)["status"] == "FAILED"


# Limits, for admins


def test_admins_can_lift_and_set_limits_and_see_pending_work(server: Server, tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        submit(anna, 2)
        location = "/admin/rate-limits"
        exempt = {"user_id": "anna", "reason": "move", "expires_at": later}
        made = emil.post(f"{location}/exemptions", json=exempt)
        assert made.status_code == 201
        assert (made.json()["user_id"], made.json()["exempted_by"]) == ("anna", "emil")
        listed = emil.get(f"{location}/exemptions").json()["data"]
        assert listed == [made.json()]
        own = {
            "max_pending_parents": 7,
            "max_pending_children": 70,
            "cooldown_seconds": 0,
            "reason": "bulk",
        }
        put = emil.put(f"{location}/users/anna", json=own)
        assert put.status_code == 200
        assert put.json()["max_pending_children"] == 70
        status = emil.get(f"{location}/status").json()
        assert status["global"]["pending_parents"]["current_value"] >= 1
        (user,) = status["users"]
        assert user["pending_children"] == {"current_value": 2, "max_value": 70}
        assert (user["exempt"], user["has_own_limits"]) == (True, True)
        assert emil.delete(f"{location}/exemptions/anna").status_code == 204
        refused(emil.delete(f"{location}/exemptions/anna"), 404, "EXEMPTION_NOT_FOUND")
        log = act(
            server,
            lambda db: sql(
                db,
                "SELECT action, actor, subject FROM batchline.audit_log"
                " WHERE tenant = %(t)s AND action LIKE 'limits%%' ORDER BY id",
                t=tenant.name,
            ),
        )
        assert log == [
            ("limits.exempted", "emil", "anna"),
            ("limits.set", "emil", "anna"),
            ("limits.exemption_dropped", "emil", "anna"),
        ]


def test_only_admins_can_change_the_limits(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("carla", Role.APPROVER) as carla:
        for client in (anna, carla):
            for method, path in (
                ("GET", "status"),
                ("GET", "exemptions"),
                ("DELETE", "exemptions/anna"),
            ):
                answer = client.request(method, f"/admin/rate-limits/{path}")
                refused(answer, 403, "PERMISSION_DENIED")
            client.base_url = tenant.server.url
            refused(client.get("/metrics"), 403, "PERMISSION_DENIED")


def test_invalid_limits_are_refused(tenant: Tenant) -> None:
    good = {"max_pending_parents": 1, "max_pending_children": 1, "cooldown_seconds": 0, "reason": "x"}
    with tenant.caller("emil", Role.ADMIN) as emil:
        for wrong in (
            {"max_pending_parents": 0},
            {"max_pending_children": 0},
            {"cooldown_seconds": -1},
            {"cooldown_seconds": 1.5},
            {"reason": ""},
            {"colour": "red"},
        ):
            answer = emil.put("/admin/rate-limits/users/anna", json={**good, **wrong})
            refused(answer, 400, "INVALID_REQUEST")
        for expires_at in ("2020-01-01T00:00:00Z", "tomorrow", "2099-01-01T00:00:00"):
            body = {"user_id": "anna", "reason": "x", "expires_at": expires_at}
            refused(emil.post("/admin/rate-limits/exemptions", json=body), 400, "INVALID_REQUEST")


# Metrics and the document


def test_metrics_count_what_workers_did_wherever_they_ran(server: Server, tenant: Tenant) -> None:
    act(server, run_all)
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        emil.base_url = server.url

        def value(name: str) -> float:
            lines = emil.get("/metrics").text.splitlines()
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

        names = [
            f'batch_child_execution_total{{batch_type="resize",status="{status}"}}'
            for status in ("succeeded", "failed", "cancelled")
        ]
        durations = 'batch_parent_duration_seconds_count{batch_type="resize"}'
        before = [value(name) for name in (*names, durations)]
        batch_id = submit(anna, 3)["batch_id"]
        act(server, lambda db: work(db, failures={1}))
        assert [value(name) for name in (*names, durations)] == [
            before[0] + 2,
            before[1] + 1,
            before[2],
            before[3] + 1,
        ]
        anna.post(f"/batches/{batch_id}/retry")
        assert value(names[1]) == before[1] + 1, "what is tried again has failed all the same"
        assert value(durations) == before[3] + 1
        act(server, run_all)
        assert value(names[0]) == before[0] + 3
        cancelled = submit(anna, 2)["batch_id"]
        anna.post(f"/batches/{cancelled}/cancel")
        assert value(names[2]) == before[2] + 2


def test_the_document_shows_every_operation_with_its_own_schema(server: Server) -> None:
    with server.http() as http:
        document = http.get("/openapi.json").json()
    for operation in REGISTRY.all():
        route = document["paths"][f"/api/v1/operations/{operation.name}/batches"]["post"]
        reference = route["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
        displayed = schema["properties"]["items"]
        assert displayed["items"] == operation.schema
        assert displayed["maxItems"] == operation.largest_batch
        assert "429" in route["responses"]


def test_operations_are_listed_with_what_they_take(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna:
        data = anna.get("/operations").json()["data"]
        assert [each["name"] for each in data] == sorted(each["name"] for each in data)
        (resize,) = (each for each in data if each["name"] == "resize")
        assert resize["item_schema"] == RESIZE.schema
        assert resize["approval"] == "env == 'production'"


def test_no_child_returns_a_secret(server: Server, tenant: Tenant) -> None:
    """What an upstream quotes of an item is masked by the item's names."""
    act(server, run_all)

    async def fail_loudly(db: Session) -> None:
        worker = a_worker()
        (item,) = await take(db, worker)
        line = (
            b'{"id":"x","custom_id":"1","response":{"status_code":400,"request_id":"r","body":'
            b'{"message":"bad password=hunter2 at postgres://u:hunter2@db","pin":"hunter2"}},"error":null}'
        )
        await spans.settle(db, worker.id, [Failed(item, line, 400)])
        await end_all(db)

    with tenant.caller("anna") as anna:
        batch_id = submit(anna, [{"vm": "a", "password": "hunter2", "pin": "hunter2"}])["batch_id"]
        act(server, fail_loudly)
        found = anna.get(f"/batches/{batch_id}")
        assert "hunter2" not in found.text
        assert "***REDACTED***" in found.json()["children"][0]["error"]["message"]


def test_after_all_of_it_the_database_is_sound(server: Server) -> None:
    async def settle_all(db: Session) -> None:
        await run_all(db)
        for (batch_id,) in await sql(db, "SELECT id FROM batchline.batches WHERE finalizing_at IS NULL"):
            await batches.close(db, batch_id, "cancel")
        await end_all(db)
        await is_sound(db)

    act(server, settle_all)


def test_a_server_without_keys_has_one_user_who_may_do_everything(database_url: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, authentication=False)
    with serving(database_url, tmp_path, settings, REGISTRY) as server, server.http() as http:
        http.base_url = f"{server.url}/api/v1"
        batch_id = submit(http, production())["batch_id"]
        assert get(http, batch_id)["created_by"] == "local"
        assert http.post(f"/batches/{batch_id}/approve").json()["approval"]["state"] == "approved"
        many = submit(http, production())["batch_id"]
        assert http.post("/approvals/batch", json={"items": [{"batch_id": many}]}).status_code == 202
        act(server, lambda db: _decide(db, server.database))
        assert get(http, many)["approval"]["state"] == "approved"


def test_a_key_named_local_cannot_approve_its_own_submission(server: Server) -> None:
    """Whoever calls a server without keys is `local`, and may approve his own; a key of that name may not."""
    client = server.http(server.key("default", Role.ADMIN, "local"))
    with client as local:
        local.base_url = f"{server.url}/api/v1"
        batch_id = submit(local, production())["batch_id"]
        refused(local.post(f"/batches/{batch_id}/approve"), 403, "PERMISSION_DENIED")
        approvals = {"items": [{"batch_id": batch_id}]}
        decisions = local.post("/approvals/batch", json=approvals).json()["batch_id"]
        act(server, lambda db: _decide(db, server.database))
        (child,) = get(local, decisions)["children"]
        assert child["error"]["code"] == "PERMISSION_DENIED"
        local.post(f"/batches/{batch_id}/cancel")

"""Governed operations against the running server, promise by promise: real processes, a simulated Kubernetes
API behind it, and a database to look into.

Each test is named for what it promises.
"""

import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from batchline.governance import keys
from batchline.model import DEFAULT_TENANT, Role
from batchline.store.session import Session
from tests.support.builders import a_database, on
from tests.support.processes import Upstream, batchline, simulated_cluster, start
from tests.support.waiting import LIMIT, wait_for

SETTINGS = """
[[upstreams]]
name = "cluster"
base_url = "{url}"

[packs.kubevirt]
upstream = "cluster"
approval = {{ vm_create = "namespace == 'production'", vm_delete = "never" }}
"""
SECRET = "hunter2-is-no-password"
# But for what waits for an approval: its lanes are shut.
UNFINISHED = """
    SELECT b.id
    FROM batchline.batches AS b
    JOIN batchline.lanes AS n ON n.batch_id = b.id
    WHERE n.open AND b.finalizing_at IS NULL
"""


@dataclass(frozen=True)
class Platform:
    """The server, its cluster and its database."""

    url: str
    database: str
    data_dir: Path
    cluster: Upstream
    # Of the test that runs; closed when it is over.
    clients: ExitStack

    def user(self, role: str = "user") -> tuple[str, httpx2.Client]:
        """Somebody new, so that no test has another one's limits."""
        name = f"{role}-{uuid.uuid4().hex[:8]}"

        async def make(session: Session) -> str:
            return (await keys.create(session, name, DEFAULT_TENANT, Role(role)))[1]

        headers = {"authorization": f"Bearer {on(self.database, make)}"}
        client = httpx2.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60)
        return name, self.clients.enter_context(client)

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(query.encode(), params).fetchall()


@pytest.fixture
def platform(running: Platform) -> Iterator[Platform]:
    with running.clients:
        yield running
    # Or what is still on its way would reach the cluster while the next test counts its requests.
    wait_for("the end of all that runs", lambda: not running.rows(UNFINISHED))


@pytest.fixture(scope="module")
def running(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    with a_database(server_url, template) as database, simulated_cluster() as cluster:
        config = folder / "batchline.toml"
        config.write_text(SETTINGS.format(url=cluster.url))
        with _served(database, folder, config) as url:
            yield Platform(url, database, folder, cluster, ExitStack())


@contextmanager
def _served(database: str, folder: Path, config: Path) -> Iterator[str]:
    location = ("--database", database, "--data-dir", str(folder), "--config", str(config))
    process = start("serve", "--port", "0", *location)
    assert process.stdout is not None
    try:
        said = ""
        while process.poll() is None and "listening" not in said:
            said += process.stdout.readline()
        url = re.search(r"listening on (\S+)/v1", said)
        assert url is not None, said
        yield url[1]
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


def machines(count: int, namespace: str = "test", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "namespace": namespace,
            "name": f"vm-{uuid.uuid4().hex[:12]}",
            "cpu": 1,
            "memory": "1Gi",
            "image": "fedora:42",
            **more,
        }
        for _ in range(count)
    ]


def positions(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"namespace": item["namespace"], "name": item["name"]} for item in items]


def submit(client: httpx2.Client, items: list[dict[str, Any]], operation: str = "create", **more: Any) -> Any:
    answer = client.post("/vms/batch", json={"operation": operation, "items": items, **more})
    assert answer.status_code == 202, answer.text
    return answer.json()


def ended(client: httpx2.Client, batch_id: str) -> Any:
    def look() -> Any:
        found = client.get(f"/vms/batch/{batch_id}").json()
        return found if found["pending_count"] == 0 else None

    return wait_for(f"the end of {batch_id}", look)


def refused(answer: httpx2.Response, status: int, code: str) -> Any:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    return answer.json()["error"]


def unlimited(platform: Platform, user: str) -> None:
    _, admin = platform.user("admin")
    moment = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    requested = {"user_id": user, "reason": "a test", "expires_at": moment}
    assert admin.post("/admin/rate-limits/exemptions", json=requested).status_code == 201


# --- 1. API contract ---------------------------------------------------------------------------------------


def test_submit_answers_202_with_the_batch_and_where_to_look(platform: Platform) -> None:
    _, ann = platform.user()
    items = machines(2)
    answer = ann.post("/vms/batch", json={"operation": "create", "items": items})
    assert answer.status_code == 202
    assert {"batch_id", "status", "status_url"} <= set(answer.json())
    assert answer.headers["location"] == answer.json()["status_url"]
    followed = httpx2.get(
        platform.url + answer.json()["status_url"],
        headers={"authorization": ann.headers["authorization"]},
        timeout=60,
    )
    assert followed.status_code == 200
    found = ended(ann, answer.json()["batch_id"])
    assert (found["status"], found["child_count"], found["success_count"]) == ("COMPLETED", 2, 2)
    assert [child["status"] for child in found["children"]] == ["SUCCEEDED", "SUCCEEDED"]
    assert [child["sequence_no"] for child in found["children"]] == [1, 2]


def test_the_older_paths_go_through_the_same_pipeline(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    items = machines(2, run_strategy="Halted")
    ended(ann, submit(ann, items)["batch_id"])
    for operation in ("start", "stop"):
        power = ann.post("/vms/batch/power", json={"operation": operation, "items": positions(items)})
        assert power.status_code == 202, power.text
        assert ended(ann, power.json()["batch_id"])["status"] == "COMPLETED"
    waiting = submit(ann, machines(1, "production"))
    assert waiting["status"] == "PENDING_APPROVAL"
    _, bob = platform.user("approver")
    decided = bob.post("/approvals/batch", json={"items": [{"batch_id": waiting["batch_id"]}]})
    assert decided.status_code == 202, decided.text
    assert ended(ann, waiting["batch_id"])["status"] == "COMPLETED"
    gone = submit(ann, positions(items), "delete")
    assert ended(ann, gone["batch_id"])["status"] == "COMPLETED"


def test_the_largest_batch_is_that_of_the_operation(platform: Platform) -> None:
    _, ann = platform.user()
    for path, operation, maximum in (("/vms/batch", "create", 10), ("/vms/batch", "delete", 10)):
        items = machines(maximum + 1) if operation == "create" else positions(machines(maximum + 1))
        answer = ann.post(path, json={"operation": operation, "items": items})
        refused(answer, 400, "BATCH_SIZE_EXCEEDED")
    power = ann.post("/vms/batch/power", json={"operation": "start", "items": positions(machines(51))})
    refused(power, 400, "BATCH_SIZE_EXCEEDED")
    decisions = [{"batch_id": f"batch_{number:032x}"} for number in range(21)]
    _, bob = platform.user("approver")
    refused(bob.post("/approvals/batch", json={"items": decisions}), 400, "BATCH_SIZE_EXCEEDED")


# --- 2. Data model -----------------------------------------------------------------------------------------


def test_the_counts_add_up_at_every_moment(platform: Platform) -> None:
    _, ann = platform.user()
    batch_id = submit(ann, machines(10))["batch_id"]

    def look() -> Any:
        found = ann.get(f"/vms/batch/{batch_id}").json()
        counts = [found[f"{name}_count"] for name in ("success", "failed", "pending", "cancelled")]
        assert sum(counts) == found["child_count"] == 10
        return found["pending_count"] == 0

    wait_for("all ten", look)


# --- 3. Atomicity ------------------------------------------------------------------------------------------


def test_one_invalid_child_refuses_the_whole_submission(platform: Platform) -> None:
    user, ann = platform.user()
    before = platform.cluster.stats()["by_verb"].get("post", 0)
    error = refused(
        ann.post("/vms/batch", json={"operation": "create", "items": [*machines(2), *machines(1, cpu=0)]}),
        400,
        "INVALID_BATCH_REQUEST",
    )
    assert "items[2].cpu" in error["message"]
    assert ann.get("/batches").json()["data"] == []
    assert platform.rows("SELECT 1 FROM batchline.audit_log WHERE actor = %s", user) == []
    assert platform.cluster.stats()["by_verb"].get("post", 0) == before
    refused(ann.post("/vms/batch", json={"operation": "create", "items": []}), 400, "INVALID_BATCH_REQUEST")


def test_children_run_independently(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    items = machines(2, run_strategy="Halted")
    ended(ann, submit(ann, items)["batch_id"])
    requested = [positions(items)[0], {"namespace": "test", "name": "nobody"}, positions(items)[1]]
    answer = ann.post("/vms/batch/power", json={"operation": "start", "items": requested})
    found = ended(ann, answer.json()["batch_id"])
    assert [child["status"] for child in found["children"]] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert "not found" in found["children"][1]["error"]["message"]


# --- 4. Concurrency: proved by the engine's own tests; here that no child runs twice ----------------------


def test_every_child_is_executed_once(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    before = platform.cluster.stats()["by_verb"].get("post", 0)
    batches = [submit(ann, machines(10))["batch_id"] for _ in range(5)]
    for batch_id in batches:
        assert ended(ann, batch_id)["success_count"] == 10
    assert platform.cluster.stats()["by_verb"]["post"] - before == 50


# --- 5. Parent status --------------------------------------------------------------------------------------


def test_the_parents_status_follows_from_its_children(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    good, bad = machines(1, run_strategy="Halted"), positions(machines(1))
    ended(ann, submit(ann, good)["batch_id"])
    for items, status in (
        (positions(good), "COMPLETED"),
        (bad, "FAILED"),
        ([*positions(good), *bad], "PARTIAL_SUCCESS"),
    ):
        answer = ann.post("/vms/batch/power", json={"operation": "start", "items": items})
        assert ended(ann, answer.json()["batch_id"])["status"] == status
    waiting = submit(ann, machines(1, "production"))["batch_id"]
    _, bob = platform.user("approver")
    assert bob.post(f"/batches/{waiting}/reject", json={"reason": "no"}).status_code == 200
    assert ann.get(f"/batches/{waiting}").json()["status"] == "CANCELLED"


# --- 6. Two layers of limits -------------------------------------------------------------------------------


def test_a_user_must_wait_between_submissions_and_gets_the_time(platform: Platform) -> None:
    _, ann = platform.user()
    submit(ann, machines(1))
    answer = ann.post("/vms/batch", json={"operation": "create", "items": machines(1)})
    error = refused(answer, 429, "RATE_LIMIT_EXCEEDED")
    assert {"limit_type", "current_value", "max_value", "retry_after", "contact_admin"} <= set(error)
    assert 0 < int(answer.headers["retry-after"]) == error["retry_after"] <= 120
    assert (error["limit_type"], error["max_value"]) == ("user_cooldown", 120)


def test_at_most_three_batches_are_pending(platform: Platform) -> None:
    user, ann = platform.user()
    _, admin = platform.user("admin")
    # No cooldown, so that what is left is the number of batches.
    mine = {"max_pending_parents": 3, "max_pending_children": 30, "cooldown_seconds": 0, "reason": "a test"}
    assert admin.put(f"/admin/rate-limits/users/{user}", json=mine).status_code == 200

    def one(_: int) -> int:
        waiting = {"operation": "create", "items": machines(1, "production")}
        return ann.post("/vms/batch", json=waiting).status_code

    with ThreadPoolExecutor(10) as pool:
        answers = sorted(pool.map(one, range(10)))
    assert answers == [202] * 3 + [429] * 7


def test_what_no_wait_could_satisfy_is_refused_for_good(platform: Platform) -> None:
    _, ann = platform.user()
    answer = ann.post("/vms/batch/power", json={"operation": "start", "items": positions(machines(31))})
    refused(answer, 400, "BATCH_SIZE_EXCEEDED")


def test_an_exemption_lifts_the_users_limits_and_can_be_taken_back(platform: Platform) -> None:
    user, ann = platform.user()
    _, admin = platform.user("admin")
    unlimited(platform, user)
    for _ in range(4):
        submit(ann, machines(1, "production"))
    displayed = {each["user_id"]: each for each in admin.get("/admin/rate-limits/status").json()["users"]}
    assert (displayed[user]["pending_parents"]["current_value"], displayed[user]["exempt"]) == (4, True)
    assert admin.delete(f"/admin/rate-limits/exemptions/{user}").status_code == 204
    answer = ann.post("/vms/batch", json={"operation": "create", "items": machines(1)})
    refused(answer, 429, "RATE_LIMIT_EXCEEDED")
    entries = platform.rows("SELECT action FROM batchline.audit_log WHERE subject = %s ORDER BY id", user)
    assert [action for (action,) in entries if action.startswith("limits.")] == [
        "limits.exempted",
        "limits.exemption_dropped",
    ]


# --- 7. Retry and idempotency ------------------------------------------------------------------------------


def test_only_failed_children_are_put_back_up_to_three_attempts(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    late, existing = machines(1, run_strategy="Halted"), machines(1, run_strategy="Halted")
    ended(ann, submit(ann, existing)["batch_id"])
    power = {"operation": "start", "items": [*positions(existing), *positions(late)]}
    batch_id = ann.post("/vms/batch/power", json=power).json()["batch_id"]
    assert ended(ann, batch_id)["status"] == "PARTIAL_SUCCESS"
    ended(ann, submit(ann, late)["batch_id"])
    _retry(ann, batch_id)
    found = ended(ann, batch_id)
    assert found["status"] == "COMPLETED"
    assert [child["attempt_count"] for child in found["children"]] == [1, 2]
    refused(ann.post(f"/vms/batch/{batch_id}/retry"), 409, "NOTHING_TO_RETRY")


def test_a_child_that_fails_three_times_stays_failed(platform: Platform) -> None:
    user, ann = platform.user()
    unlimited(platform, user)
    power = {"operation": "start", "items": positions(machines(1))}
    batch_id = ann.post("/vms/batch/power", json=power).json()["batch_id"]
    for attempt in (1, 2, 3):
        (child,) = ended(ann, batch_id)["children"]
        assert (child["status"], child["attempt_count"]) == ("FAILED", attempt)
        if attempt < 3:
            _retry(ann, batch_id)
    wait_for(
        "the files",
        lambda: ann.post(f"/vms/batch/{batch_id}/retry").json()["error"]["code"] != "BATCH_FINALIZING",
    )
    refused(ann.post(f"/vms/batch/{batch_id}/retry"), 409, "RETRY_LIMIT_REACHED")


def _retry(client: httpx2.Client, batch_id: str) -> None:
    """A batch that has just ended writes its files first, and says so."""

    def accepted() -> bool:
        answer = client.post(f"/vms/batch/{batch_id}/retry")
        if answer.status_code == 202:
            return True
        refused(answer, 409, "BATCH_FINALIZING")
        return False

    wait_for("the retry", accepted)


def test_a_request_id_gives_one_batch_however_often_it_comes(platform: Platform) -> None:
    _, ann = platform.user()
    requested = {"operation": "create", "items": machines(1, "production"), "request_id": str(uuid.uuid4())}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: ann.post("/vms/batch", json=requested), range(20)))
    assert {answer.status_code for answer in answers} == {202}
    (batch_id,) = {answer.json()["batch_id"] for answer in answers}
    _, bob = platform.user("approver")
    bob.post(f"/batches/{batch_id}/approve")
    ended(ann, batch_id)
    # Also within the cooldown, and with the status that it has by now.
    again = ann.post("/vms/batch", json=requested)
    assert (again.status_code, again.json()["status"]) == (202, "COMPLETED")
    assert ann.post("/vms/batch", json={**requested, "items": machines(1)}).status_code == 422


# --- Nobody gets around it ---------------------------------------------------------------------------------


def test_no_file_of_an_openai_client_runs_an_operation(platform: Platform) -> None:
    _, ann = platform.user()
    (item,) = positions(machines(1))
    before = platform.cluster.stats()["requests"]
    for url in ("/operations/vm_delete", "/v1/chat/completions"):
        line = {"custom_id": "1", "method": "POST", "url": url, "body": {"model": "vm_delete", **item}}
        with httpx2.Client(base_url=f"{platform.url}/v1", headers=ann.headers, timeout=60) as openai:
            file = openai.post(
                "/files",
                data={"purpose": "batch"},
                files={"file": ("x.jsonl", json.dumps(line).encode(), "application/jsonl")},
            ).json()
            requested = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
            made = openai.post("/batches", json=requested)
        assert made.status_code == 400 or made.json()["status"] == "failed", made.text
    assert platform.cluster.stats()["requests"] == before


def test_a_governed_batch_is_no_openai_batch(platform: Platform) -> None:
    _, ann = platform.user()
    batch_id = submit(ann, machines(1, "production"))["batch_id"]
    with httpx2.Client(base_url=f"{platform.url}/v1", headers=ann.headers, timeout=60) as openai:
        assert openai.get(f"/batches/{batch_id}").status_code == 404
        assert openai.post(f"/batches/{batch_id}/cancel").status_code == 404
        assert batch_id not in openai.get("/batches").text


# --- 8. Errors ---------------------------------------------------------------------------------------------


def test_what_is_refused_has_a_code_and_leaves_nothing(platform: Platform) -> None:
    _, ann = platform.user()
    _, eve = platform.user()
    waiting = submit(ann, machines(1, "production"))["batch_id"]
    refused(ann.post(f"/batches/{waiting}/approve"), 403, "PERMISSION_DENIED")
    assert eve.get(f"/batches/{waiting}").status_code == 404
    assert eve.post(f"/vms/batch/{waiting}/retry").status_code == 404
    refused(eve.get("/admin/rate-limits/status"), 403, "PERMISSION_DENIED")
    refused(ann.post("/operations/unheard_of/batches", json={"items": [{}]}), 404, "OPERATION_NOT_FOUND")
    _, bob = platform.user("approver")
    assert bob.post(f"/batches/{waiting}/approve").status_code == 200
    refused(bob.post(f"/batches/{waiting}/approve"), 409, "APPROVAL_NOT_PENDING")


def test_a_childs_error_is_its_own_and_the_parent_stays_readable(platform: Platform) -> None:
    _, ann = platform.user()
    batch_id = submit(ann, machines(1, "elsewhere"))["batch_id"]
    found = ended(ann, batch_id)
    assert found["status"] == "FAILED"
    assert 'namespaces "elsewhere" not found' in found["children"][0]["error"]["message"]


# --- 9. Observability and audit ----------------------------------------------------------------------------


def test_the_audit_log_is_complete_without_secrets_and_cannot_be_changed(platform: Platform) -> None:
    user, ann = platform.user()
    batch_id = submit(ann, machines(1, user_data=f"password: {SECRET}"), reason=f"token={SECRET}")["batch_id"]
    found = ended(ann, batch_id)
    assert SECRET not in str(found)

    def reported() -> Any:
        entries = platform.rows(
            "SELECT actor, action, detail::text FROM batchline.audit_log WHERE batch_id = %s ORDER BY id",
            uuid.UUID(batch_id.removeprefix("batch_")),
        )
        return entries if any(action.startswith("child.") for _, action, _ in entries) else None

    entries = wait_for("the child's end in the audit log", reported)
    assert entries[0][:2] == (user, "batch.submitted")
    assert SECRET not in str(entries)
    with psycopg.connect(platform.database) as connection:
        for change in (
            "UPDATE batchline.audit_log SET actor = 'nobody'",
            "DELETE FROM batchline.audit_log",
            "TRUNCATE batchline.audit_log",
        ):
            with pytest.raises(psycopg.Error, match="append-only"), connection.transaction():
                connection.execute(change)
    exported = batchline(
        "audit",
        "--batch",
        batch_id,
        BATCHLINE_DATABASE_URL=platform.database,
        BATCHLINE_DATA_DIR=str(platform.data_dir),
    )
    assert len(exported.stdout.splitlines()) >= 2


def test_metrics_have_their_documented_names(platform: Platform) -> None:
    _, ann = platform.user()
    ended(ann, submit(ann, machines(1))["batch_id"])
    again = ann.post("/vms/batch", json={"operation": "create", "items": machines(1)})
    refused(again, 429, "RATE_LIMIT_EXCEEDED")
    _, admin = platform.user("admin")
    answer = httpx2.get(
        f"{platform.url}/metrics", headers={"authorization": admin.headers["authorization"]}, timeout=60
    )
    assert answer.status_code == 200
    for name in (
        'batch_submit_total{batch_type="vm_create",result="accepted"}',
        'batch_child_execution_total{batch_type="vm_create",status="',
        "batch_parent_duration_seconds",
        'rate_limit_rejections_total{limit_type="user_cooldown"}',
    ):
        assert name in answer.text, f"{name} is not in the metrics:\n{answer.text}"

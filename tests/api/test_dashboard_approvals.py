"""What an approver sees before a decision, what each may do with governed and staged batches, and why steps
have stopped."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.templates import RequestTemplate
from batchline.model import Role, Verdict, ids
from batchline.store import spans, steps
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import a_worker, completed, failed, on, take
from tests.support.governance import end_all, items, production
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, refused, submit
from tests.support.page_client import DASHBOARD, PageClient, signed_in
from tests.support.scenes import database
from tests.support.serving import Server, serving

REBOOT = Operation(
    "reboot",
    request=RequestTemplate("nowhere", "/vms/{vm}/reboot"),
    description="Restart virtual machines",
    approval="always",
    self_approval=True,
    submitters=("role:approver",),
)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    registry = Registry((*REGISTRY.all(), REBOOT))
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, registry) as running,
    ):
        yield running


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return Tenant(server)


@pytest.fixture
def approver(server: Server, tenant: Tenant) -> Iterator[PageClient]:
    with signed_in(server, tenant.name, Role.APPROVER, "carla") as browser:
        yield browser


def submitted(tenant: Tenant, what: Any, operation: str = "resize", user: str = "anna", **more: Any) -> str:
    role = Role.APPROVER if operation == "reboot" else Role.USER
    with tenant.caller(user, role) as client:
        return str(submit(client, what, operation, **more)["batch_id"])


def run(server: Server, batch_id: str, failures: int = 0) -> None:
    """Run what may run, so that the first ones fail, and begin the next step, as a worker does."""

    async def scenario(db: Session) -> None:
        worker = a_worker()
        taken = await take(db, worker, 100, Scope(batch_id=of(batch_id)))
        verdicts: list[Verdict] = [*map(failed, taken[:failures]), *map(completed, taken[failures:])]
        await spans.settle(db, worker.id, verdicts)
        await end_all(db)
        await steps.begin(db, of(batch_id))

    on(server.database, scenario)


def of(batch_id: str) -> UUID:
    found = ids.read(ids.BATCH, batch_id)
    assert found is not None
    return found


def decide(browser: PageClient, batch_id: str, decision: str, **body: Any) -> Any:
    return browser.send("POST", f"/api/v1/batches/{batch_id}/{decision}", json=body)


def test_an_approver_sees_what_will_happen_and_approves_exactly_that(
    tenant: Tenant, approver: PageClient
) -> None:
    what = [{"vm": f"vm-{n}", "env": "production", "pin": "4711"} for n in range(1, 8)]
    batch_id = submitted(tenant, what, reason="more load on Friday")
    listed = approver.get("approvals")
    (request,) = listed["data"]
    assert (listed["next"], listed["previous"], listed["total"]) == (None, None, {"count": 1, "exact": True})
    assert request["id"] == batch_id
    assert (request["operation"], request["tenant"], request["submitter"]) == ("resize", tenant.name, "anna")
    assert (request["reason"], request["count"], request["may_decide"]) == ("more load on Friday", 7, True)
    assert [each["custom_id"] for each in request["sample"]] == ["1", "2", "3", "4", "5"]
    assert request["sample"][0]["item"] == {"vm": "vm-1", "env": "production", "pin": "***REDACTED***"}
    assert (request["sample"][0]["status"], request["sample"][0]["result"]) == ("PENDING", None)
    assert request["consequence"] == "If you approve, 7 items run as resize."
    page = approver.get(f"batches/{batch_id}")
    assert page["approval_request"] == request
    assert page["actions"] == ["approve", "reject"]
    assert page["pause"]["rule"] == "approval"
    for decision in ("approve", "reject"):
        refused(decide(approver, batch_id, decision, content_digest="0" * 64), 409, "BATCH_CHANGED")
    answer = decide(approver, batch_id, "approve", content_digest=request["content_digest"], reason=None)
    assert answer.status_code == 200, answer.text
    assert approver.get("approvals")["data"] == []
    assert approver.get(f"batches/{batch_id}")["approval_request"] is None


def test_a_rejection_names_what_was_reviewed(tenant: Tenant, approver: PageClient) -> None:
    batch_id = submitted(tenant, 2, "wipe")
    (request,) = approver.get("approvals")["data"]
    answer = decide(approver, batch_id, "reject", reason="wrong", content_digest=request["content_digest"])
    assert answer.status_code == 200, answer.text
    assert approver.get("approvals")["data"] == []


def test_after_a_sample_the_results_are_shown_failed_ones_first(
    server: Server, tenant: Tenant, approver: PageClient
) -> None:
    batch_id = submitted(tenant, 10, sample=3, max_failed=3)
    before = approver.get(f"batches/{batch_id}")["settings"]["steps"]
    assert (before["plan"], before["stopped"]) == ("all at once", None)

    run(server, batch_id, failures=1)
    (request,) = approver.get("approvals")["data"]
    assert (request["count"], request["completed"], request["failed"]) == (10, 2, 1)
    assert [each["status"] for each in request["sample"]] == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert request["sample"][0]["error"]["code"] == "http_400"
    assert request["consequence"] == (
        "3 of 10 have run as a sample: 2 completed, 1 failed. If you approve, 7 items run as resize."
    )
    page = approver.get(f"batches/{batch_id}")
    assert page["settings"]["steps"]["stopped"] == (
        "Its sample has run. The rest waits until an approver has approved the results."
    )
    refused(decide(approver, batch_id, "approve"), 400, "CONTENT_DIGEST_REQUIRED")
    answer = decide(approver, batch_id, "approve", content_digest=request["content_digest"])
    assert answer.status_code == 200, answer.text


def test_nobody_is_offered_a_decision_that_would_be_refused(server: Server, tenant: Tenant) -> None:
    wiped, own = submitted(tenant, 2, "wipe"), submitted(tenant, [{"vm": "a"}], "reboot", user="carla")
    with signed_in(server, tenant.name, Role.USER, "anna") as anna:
        (request,) = anna.get("approvals")["data"]
        assert (request["id"], request["may_decide"]) == (wiped, False)
        assert anna.get(f"batches/{wiped}")["actions"] == ["cancel", "change"]
        refused(decide(anna, wiped, "approve"), 403, "PERMISSION_DENIED")
    with signed_in(server, tenant.name, Role.APPROVER, "anna") as approving:
        # Her own submission: she may only reject it.
        assert approving.get(f"batches/{wiped}")["actions"] == ["cancel", "change", "reject"]
        refused(decide(approving, wiped, "approve"), 403, "PERMISSION_DENIED")
    with signed_in(server, tenant.name, Role.APPROVER, "carla") as carla:
        offered = {each["id"]: each["may_decide"] for each in carla.get("approvals")["data"]}
        # The operation reboot lets submitters approve.
        assert offered == {wiped: True, own: True}
        page = carla.get(f"batches/{own}")
        assert page["approval_request"]["description"] == "Restart virtual machines"
        assert page["approval_request"]["consequence"] == (
            "If you approve, 1 item runs as reboot: each is sent as POST /vms/{vm}/reboot to nowhere."
        )
        digest = page["approval_request"]["content_digest"]
        assert decide(carla, own, "approve", content_digest=digest).status_code == 200


def test_who_has_appended_children_is_not_offered_the_approval(
    server: Server, tenant: Tenant, approver: PageClient
) -> None:
    batch_id = submitted(tenant, 2, "wipe", hold=True)
    with tenant.caller("emil", Role.ADMIN) as admin:
        answer = admin.post(f"/batches/{batch_id}/append", json={"items": items(1), "custom_ids": ["c"]})
        assert answer.status_code < 300, answer.text
    with signed_in(server, tenant.name, Role.ADMIN, "emil") as emil:
        (request,) = emil.get("approvals")["data"]
        assert (request["may_decide"], request["held"], request["count"]) == (False, True, 3)
        assert emil.get(f"batches/{batch_id}")["actions"] == ["cancel", "change", "release", "reject"]
    (request,) = approver.get("approvals")["data"]
    assert request["may_decide"] is True
    assert "held" in request["consequence"]
    digest = request["content_digest"]
    assert decide(approver, batch_id, "approve", content_digest=digest).status_code == 200
    assert approver.get(f"batches/{batch_id}")["pause"]["rule"] == "hold"


def test_only_submitters_of_an_operation_may_retry_its_failed_children(
    server: Server, tenant: Tenant, approver: PageClient
) -> None:
    batch_id = submitted(tenant, 3)
    run(server, batch_id, failures=1)
    assert approver.get(f"batches/{batch_id}")["actions"] == []
    with signed_in(server, tenant.name, Role.USER, "anna") as anna:
        assert anna.get(f"batches/{batch_id}")["actions"] == ["retry"]
        answer = anna.send("POST", f"{DASHBOARD}/batches/{batch_id}/retry", json={})
        assert answer.status_code == 200, answer.text
    done = submitted(tenant, 3)
    run(server, done)
    with signed_in(server, tenant.name, Role.ADMIN, "emil") as admin:
        assert admin.get(f"batches/{done}")["actions"] == []


def test_a_batch_in_steps_says_why_it_has_stopped(server: Server, tenant: Tenant) -> None:
    batch_id = submitted(tenant, 10, steps="1,2,4,...")
    with signed_in(server, tenant.name, Role.USER, "anna") as anna:

        def now() -> Any:
            return anna.get(f"batches/{batch_id}")

        assert now()["settings"]["steps"] == {
            "plan": "1,2,4,...",
            "step": 1,
            "released": 1,
            "stopped": None,
            "next_at": None,
        }
        run(server, batch_id)
        run(server, batch_id, failures=1)
        stopped = now()
        assert (stopped["pause"]["rule"], stopped["actions"]) == (
            "max_failed",
            ["cancel", "resume", "change"],
        )
        assert stopped["settings"]["steps"]["stopped"] == (
            "1 line has failed, and 0 may. Look at the failures, then resume or cancel it."
        )
        answer = anna.send("POST", f"{DASHBOARD}/batches/{batch_id}/resume", json={})
        assert answer.status_code == 200, answer.text
        assert (now()["settings"]["steps"]["step"], now()["settings"]["steps"]["stopped"]) == (3, None)
        anna.send("POST", f"{DASHBOARD}/batches/{batch_id}/pause", json={})
        assert now()["settings"]["steps"]["stopped"].startswith("A user has paused it.")


def test_approvals_are_read_page_by_page_and_only_of_the_own_tenant(
    server: Server, tenant: Tenant, approver: PageClient
) -> None:
    made = [submitted(tenant, production(1)) for _ in range(3)]
    first = approver.get("approvals", limit=2)
    rest = approver.get("approvals", limit=2, cursor=first["next"])
    assert [each["id"] for each in first["data"] + rest["data"]] == made[::-1]
    assert (rest["next"], first["total"]["exact"]) == (None, False)
    with signed_in(server, ids.new_id().hex, Role.ADMIN) as stranger:
        assert stranger.get("approvals")["data"] == []
        assert stranger.get("approvals", cursor=first["next"])["data"] == []
        assert stranger.http.get(f"{DASHBOARD}/batches/{made[0]}").status_code == 404
        assert decide(stranger, made[0], "approve").status_code == 404


def test_a_large_item_is_cut(tenant: Tenant, approver: PageClient) -> None:
    submitted(tenant, [{"text": "x" * 50_000}], "wipe")
    (request,) = approver.get("approvals")["data"]
    item = request["sample"][0]["item"]
    assert (item["cut"], item["bytes"] > 50_000, len(item["text"])) == (True, True, 16 * 1024)

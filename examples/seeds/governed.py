"""Governed operations: the flow of the document through the HTTP API, with a simulated cluster behind it."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from examples.seeds.site import Answer, Simulated, Site, call, simulated, wait_for

SETTINGS = """
[[upstreams]]
name = "cluster"
base_url = "{url}"

[packs.kubevirt]
upstream = "cluster"
approval = {{ vm_create = "namespace == 'production'", vm_delete = "never" }}
"""
METRICS = (
    *("batch_submit_total", "batch_child_execution_total"),
    *("batch_parent_duration_seconds", "rate_limit_rejections_total"),
)


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with a key."""

    name: str
    url: str
    key: str

    def call(self, method: str, path: str, body: object = None) -> Answer:
        return call(method, f"{self.url}/api/v1{path}", self.key, body)

    def create(self, *items: dict[str, Any], **more: object) -> Answer:
        return self.call("POST", "/vms/batch", {"operation": "create", "items": items, **more})

    def start(self, *items: dict[str, Any]) -> Answer:
        named = [{"namespace": item["namespace"], "name": item["name"]} for item in items]
        return self.call("POST", "/vms/batch/power", {"operation": "start", "items": named})

    def ended(self, answer: Answer) -> Any:
        def look() -> Any:
            found = self.call("GET", f"/vms/batch/{answer.body['batch_id']}").body
            return found if found["pending_count"] == 0 else None

        return wait_for("the end of the batch", look)


def verify(site: Site) -> None:
    with simulated(module="examples.kubevirt.simulator") as cluster:
        config = site.folder / "batchline.toml"
        config.write_text(SETTINGS.format(url=cluster.url))
        with site.server("--config", str(config)) as (url, _):
            ann, bob, admin = (
                User(name, url, site.read("keys", "create", name, "--role", role)["key"])
                for name, role in (("ann", "user"), ("bob", "approver"), ("root", "admin"))
            )
            _submission(site, ann, cluster)
            _limits(site, ann, admin)
            _approval(site, ann, bob)
            _retry(site, ann)
            _audit(site, ann, admin)


def machine(namespace: str = "test", **more: object) -> dict[str, Any]:
    name = f"vm-{uuid.uuid4().hex[:12]}"
    return {"namespace": namespace, "name": name, "cpu": 1, "memory": "1Gi", "image": "fedora:42", **more}


def _refused(site: Site, what: str, answer: Answer, status: int, code: str) -> None:
    found = (answer.status, answer.body["error"]["code"])
    site.check(what, found == (status, code), f"{found[0]} {found[1]}")


def _submission(site: Site, ann: User, cluster: Simulated) -> None:
    before = site.rows()
    _refused(
        site,
        "one invalid child refuses all",
        ann.create(machine(), machine(cpu=0)),
        400,
        "INVALID_BATCH_REQUEST",
    )
    _refused(
        site, "so do 11 children", ann.create(*(machine() for _ in range(11))), 400, "BATCH_SIZE_EXCEEDED"
    )
    kept = all(
        site.rows()[table] == before[table]
        for table in ("operation_batches", "batches", "lines", "audit_log")
    )
    site.check("and nothing was created", kept and not cluster.stats()["by_verb"].get("post"))
    request_id = str(uuid.uuid4())
    items = [machine(), machine()]
    answer = ann.create(*items, request_id=request_id)
    site.check("a submission is answered 202", answer.status == 202, answer.body["status_url"])
    found = ann.ended(answer)
    counts = (found["status"], found["success_count"], [child["status"] for child in found["children"]])
    site.check("both children ran", counts == ("COMPLETED", 2, ["SUCCEEDED"] * 2), counts[0])
    again = ann.create(*items, request_id=request_id)
    same = (again.body["batch_id"], again.body["status"]) == (answer.body["batch_id"], "COMPLETED")
    site.check("the same request_id returns the first batch and its status now", same)


def _limits(site: Site, ann: User, admin: User) -> None:
    answer = ann.create(machine())
    _refused(site, "a second submission within 2 minutes is refused", answer, 429, "RATE_LIMIT_EXCEEDED")
    error = answer.body["error"]
    known = {"limit_type", "current_value", "max_value", "retry_after", "contact_admin"} <= set(error)
    site.check(
        "with Retry-After and all fields",
        known and int(answer.headers["retry-after"]) == error["retry_after"],
        f"{error['limit_type']}, Retry-After: {answer.headers['retry-after']}",
    )
    _refused(
        site,
        "a user cannot lift limits",
        ann.call("GET", "/admin/rate-limits/status"),
        403,
        "PERMISSION_DENIED",
    )
    mine = {"max_pending_parents": 3, "max_pending_children": 30, "cooldown_seconds": 0, "reason": "a try"}
    changed = admin.call("PUT", f"/admin/rate-limits/users/{ann.name}", mine)
    site.check("an admin sets the user's limits: no cooldown", changed.status == 200)
    waiting = [ann.create(machine("production")) for _ in range(4)]
    statuses = [answer.status for answer in waiting]
    site.check("three batches may be pending, not four", statuses == [202, 202, 202, 429], statuses)
    end = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    exemption = {"user_id": ann.name, "reason": "a try", "expires_at": end}
    lifted = admin.call("POST", "/admin/rate-limits/exemptions", exemption)
    site.check(
        "an exemption lifts the limits",
        (lifted.status, ann.create(machine("production")).status) == (201, 202),
    )


def _approval(site: Site, ann: User, bob: User) -> None:
    answer = ann.create(machine("production"), machine())
    site.check("a machine in production waits for an approval", answer.body["status"] == "PENDING_APPROVAL")
    path = f"/batches/{answer.body['batch_id']}/approve"
    _refused(site, "nobody approves their own submission", ann.call("POST", path), 403, "PERMISSION_DENIED")
    site.check("somebody else does", bob.call("POST", path, {"reason": "agreed"}).status == 200)
    site.check("then it runs", ann.ended(answer)["status"] == "COMPLETED")


def _retry(site: Site, ann: User) -> None:
    here, late = machine(run_strategy="Halted"), machine(run_strategy="Halted")
    ann.ended(ann.create(here))
    answer = ann.start(here, late)
    found = ann.ended(answer)
    site.check(
        "a failed child leaves its sibling alone", found["status"] == "PARTIAL_SUCCESS", found["status"]
    )
    ann.ended(ann.create(late))
    path = f"/vms/batch/{answer.body['batch_id']}/retry"
    # A batch that has just ended writes its files first, and answers 409 meanwhile.
    wait_for("the retry", lambda: ann.call("POST", path).status == 202)
    found = ann.ended(answer)
    attempts = [child["attempt_count"] for child in found["children"]]
    site.check(
        "the retry runs the failed child only", (found["status"], attempts) == ("COMPLETED", [1, 2]), attempts
    )
    wait_for("the files", lambda: ann.call("POST", path).body["error"]["code"] != "BATCH_FINALIZING")
    _refused(site, "then there is nothing to retry", ann.call("POST", path), 409, "NOTHING_TO_RETRY")


def _audit(site: Site, ann: User, admin: User) -> None:
    actions = {json.loads(line)["action"] for line in site.run("audit").splitlines()}
    needed = {"batch.submitted", "batch.approved", "batch.retried", "child.ended", "limits.exempted"}
    site.check(
        "submissions, decisions, ends of children and exemptions are in the audit log",
        needed <= actions,
        sorted(actions),
    )
    text = call("GET", f"{admin.url}/metrics", admin.key).body
    site.check("the metrics have the names of the document", all(name in text for name in METRICS))

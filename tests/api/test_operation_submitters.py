"""An operation may name those who may submit it: users and roles. All others get 403; nothing is created."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import httpx2
import pytest

from batchline.governance.registry import Registry
from batchline.model import Role, ids
from batchline.store import audit
from tests.support.builders import on
from tests.support.governance import RESIZE, items
from tests.support.operations_client import SETTINGS, Tenant, refused, submit
from tests.support.scenes import database
from tests.support.serving import Server, serving

RESTRICTED = replace(RESIZE, name="restricted", submitters=("role:approver", "anna"))
REGISTRY = Registry((RESIZE, RESTRICTED))


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


def attempt(client: httpx2.Client, **more: object) -> httpx2.Response:
    return client.post("/operations/restricted/batches", json={"items": items(1), **more})


@pytest.mark.parametrize(
    ("name", "role", "allowed"),
    [
        ("anna", Role.USER, True),
        ("anna", Role.ADMIN, True),
        ("bert", Role.USER, False),
        ("carla", Role.APPROVER, True),
        # Only the roles that are named: who administers need not be the one who submits.
        ("emil", Role.ADMIN, False),
        # The name of a user is not a role.
        ("role:approver", Role.USER, False),
    ],
)
def test_users_and_roles_that_are_named_may_submit_and_no_others(
    tenant: Tenant, name: str, role: Role, allowed: bool
) -> None:
    with tenant.caller(name, role) as caller:
        (listed,) = (
            each for each in caller.get("/operations").json()["data"] if each["name"] == "restricted"
        )
        assert listed["may_submit"] is allowed
        answer = attempt(caller)
        if allowed:
            assert answer.status_code == 202, answer.text
        else:
            error = refused(answer, 403, "PERMISSION_DENIED")
            assert "restricted" in error["message"]
            assert role.value in error["message"]
        assert len(caller.get("/batches").json()["data"]) == allowed


def test_a_refusal_comes_before_the_items_are_looked_at_and_is_counted(
    server: Server, tenant: Tenant
) -> None:
    with tenant.caller("bert") as bert, tenant.caller("emil", Role.ADMIN) as emil:
        refused(
            bert.post("/operations/restricted/batches", json={"items": [{"surprise": 1}]}),
            403,
            "PERMISSION_DENIED",
        )
        emil.base_url = server.url
        assert 'batch_submit_total{batch_type="restricted",result="denied"}' in emil.get("/metrics").text


def test_an_operation_without_submitters_is_open_to_everybody(tenant: Tenant) -> None:
    with tenant.caller("bert") as bert:
        assert submit(bert)["status"] == "IN_PROGRESS"


def test_only_submitters_add_items_to_a_held_batch(tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        batch = f"/batches/{submit(anna, 1, 'restricted', hold=True)['batch_id']}"
        refused(emil.post(f"{batch}/append", json={"items": items(1)}), 403, "PERMISSION_DENIED")
        assert anna.post(f"{batch}/append", json={"items": items(1)}).json()["child_count"] == 2
        assert emil.post(f"{batch}/cancel").status_code == 200


def denials(server: Server, tenant: Tenant) -> list[tuple[str, UUID | None, dict[str, str]]]:
    """The refusals in the tenant's audit log."""
    entries = on(server.database, lambda db: audit.page(db, tenant=tenant.name))
    return [(one.actor, one.batch_id, one.detail) for one in entries if one.action == "submission.denied"]


def test_only_submitters_retry_the_failed_children(server: Server, tenant: Tenant) -> None:
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        batch = f"/batches/{submit(anna, 1, 'restricted')['batch_id']}"
        refused(emil.post(f"{batch}/retry"), 403, "PERMISSION_DENIED")
        refused(anna.post(f"{batch}/retry"), 409, "BATCH_IN_PROGRESS")


def test_every_refusal_is_in_the_audit_log_and_nothing_else_of_it_stays(
    server: Server, tenant: Tenant
) -> None:
    with tenant.caller("anna") as anna, tenant.caller("emil", Role.ADMIN) as emil:
        name = submit(anna, 1, "restricted", hold=True)["batch_id"]
        batch_id = ids.read(ids.BATCH, name)
        refused(attempt(emil), 403, "PERMISSION_DENIED")
        refused(emil.post(f"/batches/{name}/append", json={"items": items(1)}), 403, "PERMISSION_DENIED")
        refused(emil.post(f"/batches/{name}/retry"), 403, "PERMISSION_DENIED")
        assert anna.get(f"/batches/{name}").json()["child_count"] == 1
    known = {"operation": "restricted", "role": "admin"}
    assert denials(server, tenant) == [
        ("emil", None, {**known, "act": "submit"}),
        ("emil", batch_id, {**known, "act": "append"}),
        ("emil", batch_id, {**known, "act": "retry"}),
    ]


def test_a_replay_is_answered_after_the_permission_is_gone(
    server_url: str, template: str, tmp_path: Path
) -> None:
    sent = {"request_id": "0191d0a0-0000-7000-8000-000000000001"}
    with database(server_url, template) as url:
        with serving(url, tmp_path, SETTINGS, REGISTRY) as server:
            tenant = Tenant(server)
            with tenant.caller("anna") as anna:
                made = attempt(anna, **sent).json()["batch_id"]
        nobody = Registry((replace(RESTRICTED, submitters=("carla",)),))
        with serving(url, tmp_path, SETTINGS, nobody) as server:
            again = Tenant(server)
            again.name = tenant.name
            with again.caller("anna") as anna:
                assert attempt(anna, **sent).json()["batch_id"] == made
                refused(attempt(anna), 403, "PERMISSION_DENIED")


def test_a_server_without_keys_has_no_users_to_tell_apart(database_url: str, tmp_path: Path) -> None:
    with (
        serving(database_url, tmp_path, replace(SETTINGS, authentication=False), REGISTRY) as server,
        server.http() as http,
    ):
        answer = http.post("/api/v1/operations/restricted/batches", json={"items": items(1)})
        assert answer.status_code == 202, answer.text

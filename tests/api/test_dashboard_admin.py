"""What only admins read on the dashboard: keys without secrets, and findings."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from batchline.dashboard import findings
from batchline.governance import keys
from batchline.model import Role, ids
from batchline.store.monitoring import Connections, Delay, OldestSnapshot, RowCounts
from batchline.store.session import Session
from tests.support.builders import a_batch, on, overrun, sql
from tests.support.page_client import DASHBOARD, PageClient, signed_in
from tests.support.scenes import database
from tests.support.serving import Server, serving

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[PageClient]:
    async def maintained(db: Session) -> None:
        # The tests' databases are copies of one that is as old as the run.
        await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")

    on(server.database, maintained)
    with signed_in(server, ids.new_id().hex, name="dora") as browser:
        yield browser


def tenant_of(browser: PageClient) -> str:
    return str(browser.session()["tenant"])


def test_keys_are_listed_without_secrets_newest_first_page_by_page(server: Server, admin: PageClient) -> None:
    tenant = tenant_of(admin)
    secrets = [server.key(tenant, Role.USER, name) for name in ("anna", "bert")]

    async def revoke(db: Session) -> None:
        ((key_id,),) = await sql(
            db, "SELECT id FROM batchline.api_keys WHERE tenant = %(t)s AND name = 'anna'", t=tenant
        )
        await keys.revoke(db, key_id, "dora")

    on(server.database, revoke)
    server.key(ids.new_id().hex, Role.USER, "of another tenant")
    answer = admin.http.get(f"{DASHBOARD}/keys")
    listed = answer.json()["data"]
    assert [each["name"] for each in listed] == ["bert", "anna", "dora"]
    assert [each["revoked_at"] is None for each in listed] == [True, False, True]
    assert set(listed[0]) == {"id", "name", "tenant", "role", "hint", "created_at", "revoked_at"}
    assert (listed[0]["role"], listed[0]["tenant"], listed[0]["hint"]) == ("user", tenant, secrets[1][:9])
    assert not any(secret in answer.text for secret in secrets)
    first = admin.get("keys", limit=2)
    assert admin.get("keys", limit=2, cursor=first["next"])["data"] == listed[2:]


@pytest.mark.parametrize("role", [Role.USER, Role.APPROVER])
def test_only_admins_see_keys_findings_and_the_audit_log(server: Server, role: Role) -> None:
    tenant = ids.new_id().hex
    with signed_in(server, tenant, role) as user:
        for path in ("keys", "findings", "audit"):
            answer = user.http.get(f"{DASHBOARD}/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    with signed_in(server, tenant, Role.OPERATOR) as operator:
        for path in ("keys", "findings", "audit"):
            operator.get(path)


def test_batches_that_do_not_end_are_findings_of_their_tenant_alone(
    server: Server, admin: PageClient
) -> None:
    assert admin.get("findings") == {
        "data": [],
        "next": None,
        "previous": None,
        "total": {"count": 0, "exact": True},
    }
    tenant = tenant_of(admin)

    async def scenario(db: Session) -> None:
        unwritten, late = await a_batch(db, 1, tenant=tenant), await a_batch(db, 1, tenant=tenant)
        await sql(
            db,
            """
            UPDATE batchline.batches
            SET finalizing_at = now() - interval '1 hour', finalize_error = 'the bucket is missing'
            WHERE id = %(id)s
            """,
            id=unwritten.id,
        )
        await overrun(db, late.id)
        await sql(
            db,
            "UPDATE batchline.batches SET expires_at = now() - interval '1 hour' WHERE id = %(id)s",
            id=late.id,
        )

    on(server.database, scenario)
    found = {each["check"]: each for each in admin.get("findings")["data"]}
    assert set(found) == {"files", "deadlines"}
    assert "the bucket is missing" in found["files"]["message"]
    assert {each["severity"] for each in found.values()} == {"error"}
    assert {each["count"] for each in found.values()} == {1}
    assert all(each["since"] is not None for each in found.values())
    with signed_in(server, ids.new_id().hex) as stranger:
        assert stranger.get("findings")["data"] == []


def test_late_maintenance_is_a_finding(server: Server, admin: PageClient) -> None:
    move = "UPDATE batchline.maintenance_tasks SET due_at = due_at {} interval '2 days'"

    async def scenario(db: Session, sign: str) -> None:
        await sql(db, move.format(sign))

    on(server.database, lambda db: scenario(db, "-"))
    (found,) = admin.get("findings")["data"]
    assert (found["check"], found["severity"], found["count"] > 1) == ("maintenance", "warning", True)
    on(server.database, lambda db: scenario(db, "+"))


def test_findings_of_the_database_have_the_limits_of_the_alerts() -> None:
    hour = timedelta(hours=1)
    assert list(findings.of_snapshot(OldestSnapshot(3600, 5), NOW)) == []
    (snapshot,) = findings.of_snapshot(OldestSnapshot(7200, 5), NOW)
    assert (snapshot.check, snapshot.since) == ("snapshot", NOW - 2 * hour)
    counts = [RowCounts("spans", 5, 100_001), RowCounts("results", 5, 10**6), RowCounts("lanes", 1, 9)]
    (vacuum,) = findings.of_rows(counts)
    assert (vacuum.count, vacuum.message) == (1, "Vacuum does not keep up with dead rows: spans has 100,001.")
    assert list(findings.of_connections(Connections(90, 5, 100))) == []
    (connections,) = findings.of_connections(Connections(91, 5, 100))
    assert "91 of 100" in connections.message
    assert list(findings.of_maintenance([Delay("a", 1800.0, False)], NOW)) == []
    (late,) = findings.of_maintenance([Delay("b", 3600.0, False), Delay("a", 1801.0, True)], NOW)
    assert (late.count, late.since, "a, b" in late.message) == (2, NOW - hour, True)

"""The audit log: all that was done and by whom, without secrets, and nothing can change it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
import structlog
from psycopg.conninfo import make_conninfo

from batchline.cli.logs import set_up_logging
from batchline.governance import changes, decisions, keys, limit_changes, webhooks
from batchline.governance.errors import NotFound
from batchline.model import DEFAULT_TENANT, Role
from batchline.secrets.masking import MASK
from batchline.store import audit, limits, spans
from batchline.store import keys as stored_keys
from batchline.store.audit import Entry
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, run_to_the_end, sql, take
from tests.support.builders import failed as failed_verdict
from tests.support.governance import (
    ANNA,
    CARLA,
    EMIL,
    append,
    approve_seen,
    audited,
    count,
    items,
    production,
    some_rules,
    submit,
    work,
)
from tests.support.repository import ROOT
from tests.support.reuse import a_file_of, a_reusing_batch, answer_all


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE batchline.audit_log SET actor = 'nobody'",
        "UPDATE batchline.audit_log SET actor = 'nobody' WHERE false",
        "DELETE FROM batchline.audit_log",
        "DELETE FROM batchline.audit_log WHERE id = -1",
        "TRUNCATE batchline.audit_log",
        "TRUNCATE batchline.audit_log, batchline.batches CASCADE",
        "INSERT INTO batchline.audit_log (id, tenant, actor, action) OVERRIDING SYSTEM VALUE"
        " SELECT id, 'x', 'x', 'x' FROM batchline.audit_log ON CONFLICT (id) DO UPDATE SET actor = 'nobody'",
        "MERGE INTO batchline.audit_log AS l USING (SELECT 1) AS s ON true WHEN MATCHED THEN DELETE",
    ],
)
async def test_the_database_itself_refuses_to_change_the_log(db: Session, change: str) -> None:
    """Also to the owner of the table, who we are here."""
    await submit(db, some_rules(), ANNA, 1)
    before = await audit.page(db)
    assert len(before) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        await sql(db, change)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await sql(db, "SET session_replication_role = replica; " + change)
    await sql(db, "RESET session_replication_role")
    assert await audit.page(db) == before


def of_the_page(begin: str) -> str:
    """The SQL that the operator's guide shows, from these words on."""
    page = (ROOT / "docs" / "operations.md").read_text()
    (block,) = (block for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if begin in block)
    return str(block)


async def test_the_owner_can_delete_old_rows_as_the_guide_says_and_the_rest_stays_protected(
    database_url: str, db: Session
) -> None:
    await submit(db, some_rules(), ANNA, 1)
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(of_the_page("DISABLE TRIGGER").replace("2026-01-01", "infinity").encode())
        assert owner.execute("SELECT count(*) FROM batchline.audit_log").fetchone() == (0,)
        await submit(db, some_rules(), ANNA, 1)
        for setting in ("origin", "replica"):
            owner.execute(f"SET session_replication_role = {setting}")
            with pytest.raises(psycopg.Error, match="append-only"):
                owner.execute("DELETE FROM batchline.audit_log")


async def test_a_role_that_owns_nothing_can_do_all_that_a_server_does_but_not_open_the_log(
    database_url: str,
) -> None:
    role = f"app_{uuid4().hex}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        grants, name = of_the_page("batchline_app").replace("batchline_app", role), owner.info.dbname
        assert "ON DATABASE app TO" in grants
        owner.execute(f"REVOKE TEMPORARY ON DATABASE {name} FROM public")
        owner.execute(grants.replace("ON DATABASE app TO", f"ON DATABASE {name} TO").encode())
    theirs = make_conninfo(database_url, user=role)
    try:
        async with Session(theirs, "test") as db:
            await keys.create_first(db)
            rules = some_rules()
            batch = await submit(db, rules, ANNA, production(2))
            await decisions.approve(rules, db, CARLA, batch.id)
            await work(db, failures={1})
            await changes.retry(rules, db, ANNA, batch.id)
            await work(db)
            assert len(await audited(db, batch)) == 6
            await answer_all(db, a_worker(), await a_reusing_batch(db, await a_file_of(db, ['{"q": 1}'])))
            again = await a_reusing_batch(db, await a_file_of(db, ['{"q": 1}', '{"q": 2}']))
            assert again.reused == 1
        with psycopg.connect(theirs, autocommit=True) as app:
            for change in (
                "DELETE FROM batchline.audit_log",
                "TRUNCATE batchline.audit_log",
                "ALTER TABLE batchline.audit_log DISABLE TRIGGER audit_log_append_only",
                "SET session_replication_role = replica",
                "DROP TABLE batchline.audit_log",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    app.execute(change)
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")


async def test_every_childs_end_is_there_from_the_moment_of_its_result(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 3)
    await work(db, limit=2, failures={2}, end=False)
    entries = [entry for entry in await audit.page(db, batch_id=batch.id) if entry.sequence_no]
    assert [(entry.sequence_no, entry.detail) for entry in entries] == [
        (1, {"status": "SUCCEEDED", "attempt": 1, "status_code": 200}),
        (2, {"status": "FAILED", "attempt": 1, "status_code": 400}),
    ]
    assert {entry.actor for entry in entries} == {"system"}


async def test_a_late_verdict_is_neither_in_the_log_nor_in_the_results(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    for _ in range(3):
        await spans.settle(db, worker.id, [failed_verdict(item)])
    assert [row for row in await audited(db, batch) if row[2]] == [("child.ended", "system", 1)]


async def test_ordinary_batches_are_not_in_the_log(db: Session) -> None:
    await a_batch(db, 5)
    await run_to_the_end(db, a_worker())
    assert await count(db, "audit_log") == 0


async def test_no_secret_reaches_the_log(db: Session) -> None:
    secrets = ("hunter2", "1234", "swordfish")
    rules = some_rules()
    requested = items(1, password="hunter2", pin="1234", env="production")
    batch = await submit(db, rules, ANNA, requested, reason="postgres://me:swordfish@db/x", hold=True)
    await append(rules, db, ANNA, batch.id, requested)
    await changes.release(db, ANNA, batch.id)
    await approve_seen(rules, db, CARLA, batch.id, "token=swordfish")
    text = msgspec.json.encode(await audit.page(db)).decode()
    assert not [secret for secret in secrets if secret in text]
    assert text.count(MASK) >= 6
    stored = await sql(db, "SELECT reason, decision_reason FROM batchline.operation_batches")
    assert "swordfish" not in str(stored)
    assert await count(db, "lines", "body LIKE '%%hunter2%%'") == 2, "what runs is what was asked for"


async def test_a_submission_is_logged_with_its_user_items_and_reason(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, production(2), reason="growth")
    (entry,) = await audit.page(db, tenant="acme")
    assert (entry.actor, entry.action, entry.batch_id) == ("anna", "batch.submitted", batch.id)
    assert entry.detail["operation"] == "resize"
    assert entry.detail["child_count"] == 2
    assert entry.detail["reason"] == "growth"
    assert entry.detail["approval"] == "pending"
    assert entry.detail["items"] == production(2)


async def test_every_change_of_limits_is_logged(db: Session) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    await limit_changes.exempt(db, EMIL, "anna", reason="token=swordfish", expires_at=until)
    await limit_changes.set_limits(db, EMIL, "anna", parents=1, children=2, cooldown=0, reason="move")
    await limit_changes.drop_exemption(db, EMIL, "anna")
    with pytest.raises(NotFound):
        await limit_changes.drop_exemption(db, EMIL, "anna")
    entries = await audit.page(db)
    assert [(entry.action, entry.actor, entry.subject) for entry in entries] == [
        ("limits.exempted", "emil", "anna"),
        ("limits.set", "emil", "anna"),
        ("limits.exemption_dropped", "emil", "anna"),
    ]
    assert entries[0].detail["expires_at"] == until.isoformat()
    assert entries[1].detail["max_pending_children"] == 2
    assert "swordfish" not in str(entries)


async def test_every_key_that_is_made_or_revoked_is_there(db: Session) -> None:
    await keys.create_first(db)
    key, secret = await keys.create(db, "anna", "acme", Role.APPROVER, actor="emil")
    await keys.revoke(db, key.id, "fritz")
    await keys.revoke(db, key.id, "fritz")
    entries = await audit.page(db)
    assert [(entry.tenant, entry.actor, entry.action, entry.subject) for entry in entries] == [
        (DEFAULT_TENANT, "system", "key.created", "first"),
        ("acme", "emil", "key.created", "anna"),
        ("acme", "fritz", "key.revoked", "anna"),
    ]
    assert entries[1].detail["role"] == "approver"
    assert secret not in str(entries)
    assert await keys.create_first(db) is None
    assert len(await audit.page(db)) == 3, "what changes nothing is not in the log"


async def test_a_key_is_not_created_without_its_audit_record(db: Session) -> None:
    key, _ = await keys.create(db, "anna")
    await sql(db, "ALTER TABLE batchline.audit_log ADD CHECK (action NOT LIKE 'key.%%') NOT VALID")
    with pytest.raises(psycopg.errors.CheckViolation):
        await keys.create(db, "bert")
    with pytest.raises(psycopg.errors.CheckViolation):
        await keys.revoke(db, key.id, "emil")
    (left,) = await stored_keys.list_all(db)
    assert (left.name, left.revoked_at) == ("anna", None)


async def test_limits_and_webhooks_do_not_change_without_an_audit_record(db: Session) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    url = "https://example.com/hook"
    made = await webhooks.add(db, EMIL, name="mine", url=url, events=["batch.failed"], secret="s")
    assert made is not None
    await sql(db, "ALTER TABLE batchline.audit_log ADD CHECK (action = 'x') NOT VALID")
    for act in (
        limit_changes.exempt(db, EMIL, "anna", reason="move", expires_at=until),
        limit_changes.set_limits(db, EMIL, "anna", parents=1, children=1, cooldown=0, reason="move"),
        webhooks.add(db, EMIL, name="other", url=url, events=["batch.failed"], secret="s"),
        webhooks.change(db, EMIL, made.id, name="other", url=None, events=None),
        webhooks.rotate(db, EMIL, made.id, "t", keep=0.0),
        webhooks.delete(db, EMIL, made.id),
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            await act
    assert await limits.exemptions(db, "acme") == []
    assert await limits.overrides(db, "acme") == []
    assert await sql(db, "SELECT name, secret FROM batchline.webhooks") == [("mine", "s")]


async def test_the_log_is_read_in_pages_by_tenant_batch_and_time(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 5)
    await submit(db, rules, ANNA, 1)
    await work(db)

    async def read(**which: Any) -> list[Entry]:
        found: list[Entry] = []
        while more := await audit.page(db, limit=3, after=found[-1].id if found else 0, **which):
            found += more
        return found

    assert len(await read()) == 8
    assert len(await read(tenant="acme")) == 8
    assert await read(tenant="other") == []
    assert len(await read(batch_id=batch.id)) == 6
    assert await read(since=datetime.now(UTC) + timedelta(hours=1)) == []


def test_no_log_line_shows_a_secret_not_even_that_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    log = structlog.get_logger("test")
    log.warning("cannot reach", url="postgres://me:swordfish@db/x", detail='{"password": "swordfish"}')
    try:
        raise ValueError("Failing row contains (7, token=swordfish).")
    except ValueError:
        log.exception("request failed")
    reported = capsys.readouterr().err
    assert "swordfish" not in reported
    assert reported.count(MASK) >= 3
    assert "Failing row contains (7, token=" in reported

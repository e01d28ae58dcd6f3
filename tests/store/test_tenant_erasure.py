"""Erasing a tenant leaves nothing of it, touches nothing of others, and cannot be undone by late requests."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches import erasure, maintenance
from batchline.batches.erasure import ErasureProgress
from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects
from batchline.governance import keys, webhooks
from batchline.governance import tenants as governed
from batchline.governance.access import Actor
from batchline.governance.errors import Conflict, NotFound
from batchline.model import DEFAULT_TENANT, END_EVENTS, Role
from batchline.model.ids import new_id
from batchline.store import batches, doctor, files, hooks, providers, spans, tenants
from batchline.store.maintenance import take_event
from batchline.store.session import Session, TenantClosed, run
from batchline.store.spans import Scope
from batchline.store.statements import statement
from batchline.store.uploads import NewUpload, create
from tests.support import governance
from tests.support.builders import (
    a_batch,
    a_file,
    a_worker,
    complete,
    finalize,
    kill,
    read,
    run_to_the_end,
    sql,
    take,
)
from tests.support.objects import blocks
from tests.support.objects import keys as object_keys
from tests.support.tenants import (
    KEPT,
    OPERATOR,
    a_full_tenant,
    a_stored_file,
    identity_of,
    mark_of,
    tables,
    traces,
)

# Tables that never have data of a tenant, and why.
NOT_OF_TENANTS = {
    "adoption": "one row about the whole database",
    "alembic_version": "the version of the schema",
    "hash_seeds": "two random numbers",
    "hooks": "names that the operator gives",
    "maintenance_tasks": "names of tasks",
    "operation_durations": "sums over all tenants",
    "operation_totals": "sums over all tenants",
    "rate_budget_states": "times",
    "rate_budgets": "hashes, and names of upstreams and models that the operator gives",
    "schema_compatibility": "the version of the schema",
    "worker_reports": "what processes of the operator do",
    "workers": "processes of the operator",
}
# Tables of an adoption: there is no erasure before it is finished, and then they are empty.
ADOPTED = "adopted_"
# Tables without a tenant and without a foreign key, and what deletes their rows with their batch or file.
BY_BATCH = {
    "abandoned_tasks": "a worker that has cancelled the task",
    "cause_counts": "drop_deleted_lanes",
    "counters": "drop_deleted_lanes",
    "cursors": "drop_deleted_lanes",
    "deleted_lanes": "drop_deleted_lanes",
    "file_lanes": "drop_file_lines",
    "hook_deliveries": "erase_deliveries",
    "line_hashes": "drop_file_lines",
    "lines": "drop_file_lines",
    "outbox": "erase_events",
    "provider_chunks": "a trigger on batches",
    "results": "drop_deleted_lanes",
    "retry_attempts": "drop_deleted_lanes",
    "spans": "drop_deleted_lanes",
    "usage_counted": "a trigger on batches",
}


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


async def cancel_tasks(db: Session) -> None:
    """What a worker does that has cancelled all tasks at their providers."""
    while tasks := await providers.take_abandoned(db, Scope()):
        await providers.drop_abandoned(db, tasks)


async def erase(db: Session, objects: Objects, tenant: str = "acme") -> ErasureProgress:
    return await erasure.erase(db, objects, tenant, seconds=600)


async def begin(db: Session, tenant: str = "acme") -> None:
    await governed.begin_erasure(db, OPERATOR, tenant, reason="they left")


async def stored_keys(objects: Objects) -> list[str]:
    return [key for folder in ("inputs/", "outputs/", "parts/") for key in await object_keys(objects, folder)]


# All of it, and nothing else


async def test_nothing_of_the_tenant_is_left_and_all_of_another_is(db: Session, objects: Objects) -> None:
    await hooks.register(db, ["hook"])
    await a_full_tenant(db, objects, "other")
    other, others_objects = await identity_of(db, "other"), await stored_keys(objects)
    before = await traces(db, other)
    await a_full_tenant(db, objects, "acme")
    acme = await identity_of(db, "acme")
    had = await traces(db, acme)
    expected = set(await tables(db)) - set(NOT_OF_TENANTS)
    assert {table for table in expected if not table.startswith(ADOPTED)} == set(had) - {"workers"}, (
        "the tenant of this test has no row in some table, so the test proves nothing about it"
    )
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.WAITING, "its tasks are not cancelled yet"
    await cancel_tasks(db)
    assert await erase(db, objects) is ErasureProgress.DONE
    assert set(await traces(db, acme)) == KEPT
    assert await stored_keys(objects) == others_objects
    assert await traces(db, other) == {**before, "abandoned_tasks": 0} or await traces(db, other) == {
        table: rows for table, rows in before.items() if table != "abandoned_tasks"
    }
    assert (await doctor.examine(db, object_exists=objects.exists)).findings == ()


async def test_every_table_is_erased_or_has_no_data_of_tenants(db: Session) -> None:
    """A new table must be one of: with a foreign key that deletes its rows, in the view `tenant_data` and in
    a statement that erases it, in BY_BATCH, or in NOT_OF_TENANTS."""
    with_tenant = {
        table
        for (table,) in await sql(
            db,
            "SELECT DISTINCT c.relname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'batchline'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND a.attname = 'tenant'",
        )
    }
    cascading = await sql(
        db,
        "SELECT c.conrelid::regclass::text, c.confrelid::regclass::text FROM pg_constraint AS c"
        " WHERE c.connamespace = 'batchline'::regnamespace AND c.contype = 'f' AND c.confdeltype = 'c'",
    )
    (view,) = (text for (text,) in await sql(db, "SELECT pg_get_viewdef('batchline.tenant_data'::regclass)"))
    erased = {table for table in await tables(db) if f"'{table}'::text" in view} | set(BY_BATCH)
    for _ in range(3):
        erased |= {
            table.removeprefix("batchline.")
            for table, parent in cascading
            if parent.removeprefix("batchline.") in erased
        }
    assert with_tenant - erased == {"audit_log"}, "add the table to tenant_data, and delete its rows"
    unknown = {table for table in await tables(db) if not table.startswith(ADOPTED)}
    assert unknown - erased - KEPT - set(NOT_OF_TENANTS) == set(), "is this data of tenants? See above."
    folder = Path(tenants.__file__).parent / "sql" / "tenants"
    statements = "".join(path.read_text() for path in folder.glob("*.sql"))
    for table in with_tenant - {"audit_log"}:
        by_key = any(child.removeprefix("batchline.") == table for child, _ in cascading)
        assert by_key or f"DELETE FROM batchline.{table}" in statements, f"nothing erases {table}"


async def test_tables_in_which_a_request_creates_data_refuse_it_while_a_tenant_is_erased(db: Session) -> None:
    """Not: rows that exist only together with a row of these, and counters of this minute's requests."""
    guarded = {
        table
        for (table,) in await sql(
            db,
            "SELECT t.tgrelid::regclass::text FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid"
            " WHERE p.proname IN ('tenant_open_v1', 'count_stored_v1') AND t.tgtype & 4 > 0",
        )
    }
    data = {
        table
        for (table,) in await sql(
            db,
            "SELECT c.relname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'batchline'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND a.attname = 'tenant'",
        )
    }
    together = {"lanes", "operation_batches", "idempotency", "deleted_batches", "tenant_usage", "audit_log"}
    together |= {"progress", "item_keys"}
    assert {table.removeprefix("batchline.") for table in guarded} == data - together - {"api_windows"}


# While it is being erased, and after that


async def test_nothing_new_is_accepted_while_a_tenant_is_being_erased_and_after_that(
    db: Session, objects: Objects
) -> None:
    file_id, admin = await a_file(db, {"m": 1}, tenant="acme"), Actor("acme", "emil", Role.ADMIN)
    await a_file(db, {"m": 1}, tenant="other")
    await begin(db)

    async def refused(message: str) -> None:
        new = NewUpload(new_id(), "acme", "batch", "f", "text/plain", 1, None, 60)
        for act in (
            lambda: a_file(db, {"m": 1}, tenant="acme"),
            lambda: a_batch(db, file_id=file_id, tenant="acme"),
            lambda: create(db, new),
            lambda: webhooks.add(db, admin, name="n", url="https://a.b/", events=[], secret="s"),
            lambda: governance.submit(db, governance.some_rules(), governance.ANNA),
        ):
            with pytest.raises((TenantClosed, batches.FileNotFound), match=message):
                await act()

    await refused('tenant "acme" is being erased|no input file')
    with pytest.raises(TenantClosed, match="is being erased"):
        await keys.create(db, "anna", "acme")
    assert await erase(db, objects) is ErasureProgress.DONE
    await refused('tenant "acme" was erased|no input file')
    await a_batch(db, 1, tenant="other")


async def test_keys_stop_working_when_the_erasure_begins(db: Session) -> None:
    _, secret = await keys.create(db, "anna", "acme")
    assert await keys.authenticate(db, secret)
    await begin(db)
    assert await keys.authenticate(db, secret) is None


async def test_a_new_key_opens_an_erased_tenant_again(db: Session, objects: Objects) -> None:
    await a_file(db, {"m": 1}, tenant="acme")
    await governed.set_quota(db, OPERATOR, "acme", 10)
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.DONE
    await keys.create(db, "anna", "acme")
    await a_file(db, {"m": 1}, tenant="acme")
    found = await governed.get(db, "acme")
    assert (found.erased_at, found.max_bytes) == (None, None)
    assert (await doctor.examine(db)).findings == ()


async def test_the_tenant_of_commands_can_be_used_again_at_once(db: Session, objects: Objects) -> None:
    await a_full_tenant(db, objects, DEFAULT_TENANT)
    await begin(db, DEFAULT_TENANT)
    await erase(db, objects, DEFAULT_TENANT)
    await cancel_tasks(db)
    assert await erase(db, objects, DEFAULT_TENANT) is ErasureProgress.DONE
    await a_batch(db, 1)
    assert (await doctor.examine(db)).findings == ()


async def test_an_upload_that_began_before_the_erasure_is_erased_or_refused(
    database_url: str, db: Session, objects: Objects
) -> None:
    """The erasure begins after the commit of a transaction that has added its file."""
    await a_file(db, {"m": 1}, tenant="acme")
    async with Session(database_url, "upload") as other:
        async with files.incoming(other) as incoming:
            await incoming.add(
                files.NewFile(new_id(), "acme", "batch", "late", 5, b"", object_key="inputs/late")
            )
            begun = asyncio.create_task(begin(db))
            async with Session(database_url, "watch") as watch:
                await governance.somebody_waits(watch)
        await begun
        assert await erase(db, objects) is ErasureProgress.DONE
        assert await sql(db, "SELECT 1 FROM batchline.files") == []
        with pytest.raises(TenantClosed):
            async with files.incoming(other) as incoming:
                await incoming.add(
                    files.NewFile(new_id(), "acme", "batch", "late", 5, b"", object_key="inputs/x")
                )


async def test_an_erasure_does_not_end_while_a_transaction_may_add_rows(
    database_url: str, db: Session, objects: Objects
) -> None:
    """The batch is created before the erasure begins, and committed when it has deleted all else."""
    file_id = await a_file(db, {"m": 1}, tenant="acme")
    async with Session(database_url, "creator") as other:
        async with other.transaction() as connection:
            params = {"file": file_id, "id": new_id()}
            await connection.execute(
                b"INSERT INTO batchline.batches (id, tenant, file_id, completion_window, settings, total)"
                b" VALUES (%(id)s, 'acme', %(file)s, '24h', '{}', 1)",
                params,
            )
            await begin(db)
            assert await erase(db, objects) is ErasureProgress.WAITING
        assert await erase(db, objects) is ErasureProgress.DONE
    assert await sql(db, "SELECT 1 FROM batchline.batches") == []


# Work that runs


async def test_running_work_stops_before_anything_is_deleted(db: Session, objects: Objects) -> None:
    batch, worker = await a_batch(db, 5, tenant="acme"), a_worker()
    items = await take(db, worker, 2)
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.WAITING, "two requests are in flight"
    assert await take(db, a_worker()) == [], "no more lines are given to workers"
    assert (await read(db, batch)).cancelling_at is not None
    await complete(db, worker, items)
    assert await erase(db, objects) is ErasureProgress.DONE


async def test_lines_of_a_lost_worker_do_not_hold_up_the_erasure(db: Session, objects: Objects) -> None:
    worker = a_worker()
    await a_batch(db, 5, tenant="acme")
    await take(db, worker, 2)
    await begin(db)
    await erase(db, objects)
    await kill(db, worker)
    assert await erase(db, objects) is ErasureProgress.DONE


async def test_no_worker_writes_files_of_a_tenant_that_is_being_erased(db: Session, objects: Objects) -> None:
    worker = a_worker()
    batch = await a_batch(db, 5, tenant="acme")
    await take(db, worker, 1)
    await begin(db)
    await erase(db, objects)
    await spans.release(db, worker.id)
    await batches.conclude(db, batch.id)
    assert (await read(db, batch)).finalizing_at is not None
    assert await finalize_one(db, objects, a_worker(), batch.id) is None


async def test_a_finalizer_that_has_begun_may_end_and_its_files_are_erased(
    db: Session, objects: Objects
) -> None:
    worker = a_worker()
    batch = await a_batch(db, 2, tenant="acme")
    await run_to_the_end(db, worker)
    assert await batches.claim_finalizing(db, worker, batch.id)
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.WAITING
    await finalize(db, worker, batch)
    assert await erase(db, objects) is ErasureProgress.DONE


async def test_files_of_a_killed_finalizer_are_erased(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 2, tenant="acme")
    await objects.write(f"outputs/{batch.id.hex}/lost.jsonl", blocks(b"answer"))
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.DONE
    assert await stored_keys(objects) == []


async def test_tasks_are_cancelled_at_their_provider_before_their_batch_is_forgotten(
    db: Session, objects: Objects
) -> None:
    await a_full_tenant(db, objects, "acme")
    await begin(db)
    assert await erase(db, objects) is ErasureProgress.WAITING
    left = await tenants.left(db, "acme")
    assert (left.batches, left.tasks) == (2, 3)
    taken = await providers.take_abandoned(db, Scope())
    assert sorted(task.task_id for task in taken) == [f"{mark_of('acme')} {n}" for n in (1, 2, 3)]
    await providers.drop_abandoned(db, taken)
    assert await erase(db, objects) is ErasureProgress.DONE


async def test_an_event_that_is_being_fanned_out_leaves_no_delivery(
    database_url: str, db: Session, objects: Objects
) -> None:
    """The deletion of the event waits for the deliveries, and then deletes them, too."""
    worker = a_worker()
    await hooks.register(db, ["hook"])
    batch = await a_batch(db, 1, tenant="acme")
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)
    event = await take_event(db)
    assert event is not None
    await begin(db)
    async with Session(database_url, "outbox") as other:
        async with other.transaction() as connection:
            params = {"event": event.id, "ends": list(END_EVENTS)}
            await run(connection, statement("fan_out_hooks"), params)
            erasing = asyncio.create_task(erase(db, objects))
            async with Session(database_url, "watch") as watch:
                await governance.somebody_waits(watch)
        assert await erasing is ErasureProgress.DONE
    assert await sql(db, "SELECT 1 FROM batchline.hook_deliveries") == []


# In chunks, by anybody, again


async def test_a_worker_erases_what_was_begun_elsewhere(db: Session, objects: Objects) -> None:
    await a_stored_file(db, objects, "acme")
    await begin(db)
    await maintenance.run_due(db, objects)
    assert (await governed.get(db, "acme")).erased_at is not None


async def test_an_erasure_that_waits_is_due_again_soon(db: Session, objects: Objects) -> None:
    await a_batch(db, 5, tenant="acme")
    await take(db, a_worker(), 2)
    await begin(db)
    await maintenance.run_due(db, objects)
    query = (
        "SELECT due_at < now() + interval '5 seconds' FROM batchline.maintenance_tasks WHERE name = 'erasure'"
    )
    assert await sql(db, query) == [(True,)]


async def test_one_chunk_at_a_time_ends_and_leaves_nothing(
    db: Session, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("retention", "deletion", "tenants"):
        monkeypatch.setattr(f"batchline.store.{module}.CHUNK", 2)
    monkeypatch.setattr(tenants, "_PAGE", 2)
    await a_full_tenant(db, objects, "acme")
    acme = await identity_of(db, "acme")
    await begin(db)
    await cancel_tasks(db)
    steps = 0
    while await erasure.erase(db, objects, "acme", seconds=0) is not ErasureProgress.DONE:
        await cancel_tasks(db)
        steps += 1
    assert steps > 20
    assert set(await traces(db, acme)) == KEPT


async def test_two_erasers_at_once_leave_nothing_and_record_one_end(
    database_url: str, db: Session, objects: Objects
) -> None:
    await a_full_tenant(db, objects, "acme")
    acme = await identity_of(db, "acme")
    await begin(db)
    await erase(db, objects)
    await cancel_tasks(db)

    async def all_of_it(name: str) -> None:
        async with Session(database_url, name) as session:
            while (await governed.get(session, "acme")).erased_at is None:
                await erase(session, objects)

    await asyncio.gather(all_of_it("one"), all_of_it("two"))
    assert set(await traces(db, acme)) == KEPT
    query = "SELECT count(*)::integer FROM batchline.audit_log WHERE action = 'tenant.erased'"
    assert await sql(db, query) == [(1,)]


# The record


async def test_the_audit_log_keeps_its_entries_and_gets_two(db: Session, objects: Objects) -> None:
    await a_full_tenant(db, objects, "acme")
    query = "SELECT id, actor, action, detail FROM batchline.audit_log WHERE tenant = 'acme' ORDER BY id"
    before = await sql(db, query)
    assert len(before) > 4
    await begin(db)
    await begin(db)
    await erase(db, objects)
    await cancel_tasks(db)
    await erase(db, objects)
    after = await sql(db, query)
    assert after[: len(before)] == before
    added = [(actor, action) for _, actor, action, _ in after[len(before) :] if action.startswith("tenant.")]
    assert added == [("olga", "tenant.erasure_begun"), ("olga", "tenant.erased")]


async def test_an_unknown_and_an_erased_tenant_are_not_found(db: Session, objects: Objects) -> None:
    with pytest.raises(NotFound, match=r"^No such tenant: nobody$"):
        await begin(db, "nobody")
    await a_file(db, {"m": 1}, tenant="acme")
    await begin(db)
    await erase(db, objects)
    with pytest.raises(NotFound):
        await begin(db)


async def test_there_is_no_erasure_while_a_database_is_adopted(db: Session) -> None:
    await a_file(db, {"m": 1}, tenant="acme")
    await sql(db, "INSERT INTO batchline.adoption (source, shape, phase) VALUES ('old', '{}', 'adopted')")
    with pytest.raises(Conflict, match="Finish or roll back the adoption first"):
        await begin(db)

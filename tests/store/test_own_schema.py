"""All tables live in one schema, beside a host application's, and those of version 0.1.0 move into it."""

import re
from collections.abc import Iterator
from contextlib import aclosing
from importlib.resources import files
from uuid import uuid4

import psycopg
import pytest

from batchline.store import doctor, migrate, relocation, schema, spans
from batchline.store.errors import StoreUnusable
from batchline.store.events import notifications
from batchline.store.session import Session
from tests.support.builders import (
    a_batch,
    a_database,
    a_worker,
    completed,
    finalize,
    on,
    run_to_the_end,
    sql,
    take,
)

# What a host application may have, with our names and other columns.
HOST = """
CREATE TABLE files (path text PRIMARY KEY);
CREATE TABLE workers (name text, badge integer);
CREATE TABLE alembic_version (version_num text PRIMARY KEY);
INSERT INTO alembic_version VALUES ('{revision}');
"""
TABLES = "SELECT count(*)::integer FROM pg_tables WHERE schemaname = %(schema)s"


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    with a_database(server_url) as url:
        yield url


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


def value(url: str, query: str, **params: object) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode(), params).fetchone()
    assert row is not None
    return row[0]


def version_0_1_0(url: str, revision: str = relocation.LAST_WITHOUT_SCHEMA) -> None:
    """As that version left a database: its tables stood in the schema that came first in search_path."""
    migrate.up(url, revision)
    execute(url, "DROP SCHEMA public; ALTER SCHEMA batchline RENAME TO public")


async def half_run(db: Session) -> None:
    await a_batch(db, {"small": 4, "large": 4})
    worker = a_worker()
    items = await take(db, worker, 3)
    await spans.settle(db, worker.id, [completed(items[0])])


def test_programs_of_0_1_0_would_not_survive_an_upgrade_and_a_rolling_one_changes_nothing(
    empty_url: str,
) -> None:
    version_0_1_0(empty_url)
    with pytest.raises(migrate.NotRolling, match="stays at version 0010"):
        migrate.up(empty_url, rolling=True)
    assert value(empty_url, "SELECT version_num FROM public.alembic_version") == "0010"
    migrate.up(empty_url)
    # Nothing is left to upgrade.
    migrate.up(empty_url, rolling=True)


def test_every_statement_names_the_schema_of_each_table() -> None:
    """Without it, a statement would depend on search_path, which a pooler does not keep."""
    with_tables = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|COPY)\s+(?!LATERAL|ONLY|SET|STDIN)([a-z_.]+)")
    tables = {
        "files", "file_lanes", "lines", "batches", "lanes", "spans", "results", "retry_attempts", "workers",
        "maintenance_tasks", "outbox", "webhooks", "deliveries", "operation_totals", "operation_durations",
        "operation_batches", "limit_subjects", "limit_overrides", "limit_exemptions", "api_windows",
        "audit_log", "uploads", "upload_parts", "api_keys", "idempotency", "requests", "governed_batches",
    }  # fmt: skip
    found = 0
    for folder in (files("batchline.store") / "sql").iterdir():
        for file in folder.iterdir():
            text = re.sub(r"--.*", "", file.read_text())
            bare = {name for name in with_tables.findall(text) if name in tables}
            own = {name for name in bare if re.search(rf"\b{name} AS (MATERIALIZED )?\(", text)}
            assert bare <= own, f"{file.name} names {bare - own} without a schema"
            found += len(with_tables.findall(text))
    assert found > 200


def test_a_batch_runs_in_a_schema_of_another_name(empty_url: str) -> None:
    url = f"{empty_url} schema=jobs"
    migrate.up(url)

    async def whole(db: Session) -> None:
        batch = await a_batch(db, {"small": 4, "large": 4})
        worker = a_worker()
        await run_to_the_end(db, worker)
        assert (await finalize(db, worker, batch)).completed == 8
        assert (await doctor.examine(db)).findings == ()

    on(url, whole)
    assert value(empty_url, TABLES, schema="jobs") != 0
    assert value(empty_url, TABLES, schema="batchline") == 0
    assert schema.status(empty_url).current is None


def test_two_schemas_of_one_database_share_nothing(empty_url: str) -> None:
    """Not even notifications: a worker of one would wake for batches of the other."""
    mine, theirs = empty_url, f"{empty_url} schema=jobs"
    migrate.up(mine)
    migrate.up(theirs)

    async def create_and_hear(db: Session) -> None:
        async with Session(theirs, "test") as other, aclosing(notifications(theirs)) as heard:
            assert (await anext(heard)).kind == "listening"
            await a_batch(db, 1)
            batch = await a_batch(other, 1)
            assert (await anext(heard)).batch_id == batch.id
            assert await sql(db, "SELECT id FROM jobs.batches") == [(batch.id,)]

    on(mine, create_and_hear)


@pytest.mark.parametrize("revision", ["0001", "0005", "0010"])
def test_the_tables_of_version_0_1_0_move(empty_url: str, revision: str) -> None:
    version_0_1_0(empty_url, revision)
    migrate.up(empty_url)
    assert schema.status(empty_url).up_to_date
    assert value(empty_url, TABLES, schema="public") == 0
    on(empty_url, half_run)


def test_the_tables_of_version_0_1_0_move_into_a_schema_whose_name_ends_names_of_tables(
    empty_url: str,
) -> None:
    """`lanes.id` contains `s.`, but does not name the schema s."""
    version_0_1_0(empty_url)
    migrate.up(f"{empty_url} schema=s")
    assert value(empty_url, TABLES, schema="public") == 0
    on(f"{empty_url} schema=s", half_run)


def test_the_rows_of_version_0_1_0_move_along(empty_url: str) -> None:
    migrate.up(empty_url)
    on(empty_url, half_run)
    migrate.down(empty_url, relocation.LAST_WITHOUT_SCHEMA)
    execute(empty_url, "DROP SCHEMA public; ALTER SCHEMA batchline RENAME TO public")
    migrate.up(empty_url)

    async def finish(db: Session) -> None:
        assert (await doctor.examine(db)).findings == ()
        ((results, held),) = await sql(
            db, "SELECT (SELECT count(*) FROM batchline.results), (SELECT count(*) FROM batchline.spans)"
        )
        assert (results, held) == (1, 1)
        await a_batch(db, 2)

    on(empty_url, finish)


@pytest.mark.parametrize("revision", ["3f9ab", "0010", "0003"])
def test_a_host_application_keeps_its_tables(empty_url: str, revision: str) -> None:
    """Also where its revisions are named as ours are."""
    execute(empty_url, HOST.format(revision=revision))
    migrate.up(empty_url)
    assert schema.status(empty_url).up_to_date
    assert value(empty_url, "SELECT version_num FROM public.alembic_version") == revision
    assert value(empty_url, TABLES, schema="public") == 3
    on(empty_url, half_run)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ALTER TABLE batches ADD COLUMN colour text", "batches"),
        ("ALTER TABLE spans ALTER COLUMN attempt SET DEFAULT 2", "spans"),
        ("DROP INDEX outbox_due", "outbox"),
        ("DROP TABLE duties", "duties"),
        ("ALTER TABLE audit_log DISABLE TRIGGER ALL", "audit_log"),
        ("UPDATE alembic_version SET version_num = '3f9'", "'3f9'"),
    ],
)
def test_tables_that_are_not_quite_ours_are_refused(empty_url: str, change: str, named: str) -> None:
    version_0_1_0(empty_url)
    execute(empty_url, change)
    before = value(empty_url, TABLES, schema="public")
    with pytest.raises(StoreUnusable, match=re.escape(named)):
        migrate.up(empty_url)
    assert value(empty_url, TABLES, schema="public") == before
    assert value(empty_url, "SELECT to_regnamespace('batchline') IS NULL")


def test_a_user_without_the_right_to_create_schemas_uses_an_existing_one(
    server_url: str, empty_url: str
) -> None:
    name = f"tenant_{uuid4().hex}"
    execute(server_url, f"CREATE ROLE {name} LOGIN")
    try:
        execute(empty_url, f"CREATE SCHEMA batchline AUTHORIZATION {name}")
        theirs = f"{empty_url} user={name}"
        migrate.up(theirs)
        on(theirs, half_run)
        migrate.down(theirs, "base")
        migrate.up(theirs)
    finally:
        execute(empty_url, f"DROP OWNED BY {name}")
        execute(server_url, f"DROP ROLE {name}")

"""A database that cannot be used ends a command with one sentence, a remedy and exit code 2. No traceback."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from batchline.model.ids import new_id
from batchline.store import migrate, schema
from tests.support.builders import a_database
from tests.support.old_database import SHAPES
from tests.support.pgbouncer import pooled
from tests.support.processes import batchline


@pytest.fixture
def empty(server_url: str) -> Iterator[str]:
    with a_database(server_url) as url:
        yield url


@pytest.fixture
def guest(server_url: str) -> Iterator[str]:
    """A role that was granted nothing."""
    name = f"guest_{new_id().hex}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def reported(folder: Path, database: str, *command: str) -> str:
    """The one sentence."""
    done = batchline(*(command or ("list",)), "--database", database, "--data-dir", str(folder / "data"))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def run_sql(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_a_user_who_may_not_create_the_schema(empty: str, guest: str, tmp_path: Path) -> None:
    said = reported(tmp_path, make_conninfo(empty, user=guest), "migrate", "up")
    assert "permission denied for database" in said
    assert "GRANT CREATE ON DATABASE" in said


@pytest.mark.parametrize(
    "command",
    [("list",), ("run", "in.jsonl", "--upstream", "http://127.0.0.1:9"), ("worker", "--drain"), ("serve",)],
)
def test_a_database_that_was_not_migrated(
    empty: str, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text(
        '{"custom_id": "1", "method": "POST", "url": "/v1/x", "body": {"model": "m"}}\n'
    )
    said = reported(tmp_path, empty, *command)
    assert "no Batchline tables in schema batchline" in said
    assert "batchline migrate up" in said


def test_an_older_schema(database_url: str, tmp_path: Path) -> None:
    migrate.down(database_url, "0010")
    said = reported(tmp_path, database_url)
    assert f"at version 0010, and this Batchline needs {schema.OLDEST_USABLE}" in said
    assert "batchline migrate up" in said


def test_a_newer_schema_that_is_marked_compatible(database_url: str, tmp_path: Path) -> None:
    run_sql(database_url, "UPDATE batchline.alembic_version SET version_num = '9999'")
    done = batchline("list", "--json", "--database", database_url, "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["Batches", "pg_mine", "a b", "1st", "x" * 64, ""])
def test_a_name_that_no_schema_may_have(server_url: str, tmp_path: Path, name: str) -> None:
    said = reported(tmp_path, f"postgresql://localhost/app?schema={quote(name)}")
    assert "not a valid name" in said


@pytest.mark.parametrize("command", [("list",), ("keys", "create", "me"), ("worker", "--drain")])
def test_a_user_who_may_not_read_the_tables(
    database_url: str, guest: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = reported(tmp_path, make_conninfo(database_url, user=guest), *command)
    assert "permission denied for schema batchline" in said
    assert "grant" in said


def test_a_user_who_may_read_nothing_but_the_version(database_url: str, guest: str, tmp_path: Path) -> None:
    run_sql(
        database_url,
        f"GRANT USAGE ON SCHEMA batchline TO {guest};"
        f" GRANT SELECT ON batchline.alembic_version, batchline.schema_compatibility TO {guest}",
    )
    try:
        said = reported(tmp_path, make_conninfo(database_url, user=guest), "keys", "create", "me")
    finally:
        run_sql(database_url, f"DROP OWNED BY {guest}")
    assert "permission denied for table" in said


def test_tables_that_are_missing(database_url: str, tmp_path: Path) -> None:
    run_sql(database_url, "CREATE SCHEMA aside; ALTER VIEW batchline.current_batches SET SCHEMA aside")
    said = reported(tmp_path, database_url)
    assert 'relation "batchline.current_batches" does not exist' in said
    assert "batchline migrate status" in said


def test_tables_of_another_program_in_the_schema(empty: str, tmp_path: Path) -> None:
    run_sql(empty, "CREATE SCHEMA batchline; CREATE TABLE batchline.files (name text)")
    said = reported(tmp_path, empty, "migrate", "up")
    assert 'relation "files" already exists' in said
    assert "choose another schema" in said


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE batchline.alembic_version (version_num) AS SELECT 7",
        "CREATE TABLE batchline.alembic_version (version text)",
        "CREATE TABLE batchline.alembic_version (version_num json)",
        "CREATE VIEW batchline.alembic_version AS SELECT NULL::text AS version_num",
        "CREATE VIEW batchline.files AS SELECT 1",
        "CREATE TYPE batchline.outcome AS ENUM ('good', 'bad')",
        "CREATE FUNCTION batchline.span_size(int4multirange) RETURNS integer LANGUAGE sql RETURN 1",
    ],
)
def test_a_schema_that_nobody_expects(empty: str, tmp_path: Path, statement: str) -> None:
    run_sql(empty, f"CREATE SCHEMA batchline; {statement}")
    reported(tmp_path, empty, "migrate", "up")


def test_a_version_that_does_not_match_the_tables(database_url: str, tmp_path: Path) -> None:
    run_sql(database_url, "UPDATE batchline.alembic_version SET version_num = '0001'")
    said = reported(tmp_path, database_url, "migrate", "up")
    assert 'column "errors" of relation "files" already exists' in said
    assert "nothing was changed" in said


def test_a_view_of_somebody_else_that_is_in_the_way_of_a_downgrade(database_url: str, tmp_path: Path) -> None:
    run_sql(database_url, "CREATE VIEW public.mine AS SELECT id FROM batchline.batches")
    said = reported(tmp_path, database_url, "migrate", "down", "base")
    assert "other objects depend on" in said


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_tables_of_a_database_to_adopt_are_no_obstacle(empty: str, tmp_path: Path, shape: str) -> None:
    run_sql(empty, SHAPES[shape])
    done = batchline("migrate", "up", "--database", empty, "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_table_of_another_program(empty: str, tmp_path: Path) -> None:
    run_sql(
        empty,
        "CREATE SCHEMA batchline; CREATE TABLE batchline.alembic_version (version_num text);"
        " INSERT INTO batchline.alembic_version VALUES ('3f9')",
    )
    said = reported(tmp_path, empty, "migrate", "up")
    assert "'3f9'" in said
    assert "choose another one with ?schema=NAME" in said


@pytest.mark.parametrize("command", [("list",), ("worker",), ("migrate", "up"), ("migrate", "down", "0001")])
def test_a_newer_schema(database_url: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    run_sql(
        database_url,
        "UPDATE batchline.alembic_version SET version_num = '9999';"
        " UPDATE batchline.schema_compatibility SET compatible_from = '9999'",
    )
    said = reported(tmp_path, database_url, *command)
    assert f"knows versions up to {schema.HEAD}" in said
    assert "upgrade Batchline" in said


def test_a_database_that_does_not_exist(server_url: str, tmp_path: Path) -> None:
    said = reported(tmp_path, make_conninfo(server_url, dbname="nowhere"))
    assert 'database "nowhere" does not exist' in said
    assert "create it, or correct --database" in said


def test_a_user_who_does_not_exist(server_url: str, tmp_path: Path) -> None:
    said = reported(tmp_path, make_conninfo(server_url, user="nobody_here"))
    assert "nobody_here" in said
    assert "correct --database" in said


def test_a_wrong_password(database_url: str, tmp_path: Path) -> None:
    """PgBouncer asks for one, as a server does; that of the tests trusts everybody."""
    with pooled(database_url, tmp_path / "pgbouncer") as url:
        said = reported(tmp_path, make_conninfo(url, password="guessed"))
    assert "authentication failed" in said
    assert "check the user and the password in --database" in said
    assert "guessed" not in said


def test_no_server(tmp_path: Path) -> None:
    said = reported(tmp_path, "postgresql://me@127.0.0.1:9/batchline")
    assert "Connection refused" in said
    assert "check the host, the port" in said


def test_no_url(tmp_path: Path) -> None:
    said = reported(tmp_path, "postgresql//me@here")
    assert "use one like postgresql://user@host/name" in said

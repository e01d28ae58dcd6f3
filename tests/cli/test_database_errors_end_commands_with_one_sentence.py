"""A database that cannot be used ends a command with one sentence, a remedy and exit code 2. No traceback."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from batchline.model.ids import new_id
from batchline.store import migrate
from tests.support.builders import a_database
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


@pytest.mark.parametrize("command", [("list",), ("migrate", "up")])
def test_a_user_who_may_not_create_tables(
    empty: str, guest: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = reported(tmp_path, make_conninfo(empty, user=guest), *command)
    assert "permission denied for schema public" in said
    assert "GRANT USAGE, CREATE ON SCHEMA public" in said


@pytest.mark.parametrize("command", [("list",), ("keys", "create", "me"), ("worker", "--drain")])
def test_a_user_who_may_not_read_the_tables(
    database_url: str, guest: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = reported(tmp_path, make_conninfo(database_url, user=guest), *command)
    assert "permission denied for table alembic_version" in said
    assert "grant" in said


def test_a_user_who_may_read_nothing_but_the_version(database_url: str, guest: str, tmp_path: Path) -> None:
    run_sql(database_url, f"GRANT SELECT ON alembic_version TO {guest}")
    try:
        said = reported(tmp_path, make_conninfo(database_url, user=guest), "keys", "create", "me")
    finally:
        run_sql(database_url, f"DROP OWNED BY {guest}")
    assert "permission denied for table" in said


def test_a_schema_that_does_not_exist(empty: str, tmp_path: Path) -> None:
    said = reported(tmp_path, make_conninfo(empty, options="-c search_path=nowhere"))
    assert "no schema" in said
    assert "search_path in --database" in said


def test_tables_that_are_not_where_the_search_path_looks(database_url: str, tmp_path: Path) -> None:
    run_sql(database_url, "CREATE SCHEMA aside; ALTER TABLE batches SET SCHEMA aside")
    said = reported(tmp_path, database_url)
    assert 'relation "batches" does not exist' in said
    assert "batchline migrate status" in said


def test_tables_of_another_program_with_the_same_names(empty: str, tmp_path: Path) -> None:
    run_sql(empty, "CREATE TABLE files (name text)")
    said = reported(tmp_path, empty)
    assert 'relation "files" already exists' in said
    assert "a database or a schema of its own" in said


def test_the_version_table_of_another_program(empty: str, tmp_path: Path) -> None:
    run_sql(
        empty, "CREATE TABLE alembic_version (version_num text); INSERT INTO alembic_version VALUES ('3f9')"
    )
    said = reported(tmp_path, empty)
    assert "'3f9'" in said
    assert "a database or a schema of its own" in said


@pytest.mark.parametrize("command", [("list",), ("worker",), ("migrate", "up"), ("migrate", "down", "0001")])
def test_a_newer_schema(database_url: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    run_sql(database_url, "UPDATE alembic_version SET version_num = '9999'")
    said = reported(tmp_path, database_url, *command)
    assert f"knows versions up to {migrate.HEAD}" in said
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
    assert "give one such as postgresql://user@host/name" in said

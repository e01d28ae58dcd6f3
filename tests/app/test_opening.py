"""Databases that an app cannot use: one clear error each."""

from pathlib import Path

import psycopg
import pytest

from batchline import Batchline, DatabaseUnavailable
from batchline.store.session import Session


async def submit_to(database: str, folder: Path) -> None:
    async with Batchline(database, data_dir=folder / "data") as app:

        @app.operation
        async def same(number: int) -> int:
            return number

        await app.submit(same, [1])


async def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot connect to the database") as raised:
        await submit_to("postgresql://nobody@127.0.0.1:1/nothing", tmp_path)
    assert str(raised.value).endswith('check the host, the port and the names in Batchline("postgresql://…")')


async def test_a_database_that_does_not_exist(server_url: str, tmp_path: Path) -> None:
    url = psycopg.conninfo.make_conninfo(server_url, dbname="not_there")
    with pytest.raises(DatabaseUnavailable, match="does not exist; create it"):
        await submit_to(url, tmp_path)


async def test_what_is_no_database_url(tmp_path: Path) -> None:
    with pytest.raises(
        DatabaseUnavailable, match=r'^the URL in Batchline\("postgresql://…"\) is not a database'
    ):
        await submit_to("my-database", tmp_path)


async def test_a_database_without_tables(server_url: str, tmp_path: Path) -> None:
    advice = "run `batchline migrate up` with --database and the URL of the app first"
    with pytest.raises(DatabaseUnavailable, match=advice):
        await submit_to(server_url, tmp_path)


async def test_a_database_with_an_old_schema(db: Session, database_url: str, tmp_path: Path) -> None:
    async with db.transaction() as connection:
        await connection.execute(b"UPDATE batchline.alembic_version SET version_num = '0020'")
    with pytest.raises(DatabaseUnavailable, match=r"is at version 0020.*run `batchline migrate up`"):
        await submit_to(database_url, tmp_path)


async def test_a_folder_that_cannot_be_made(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnavailable, match="data folder"):
        await submit_to(database_url, tmp_path / "file")


async def test_an_app_that_could_not_be_opened_opens_when_the_cause_is_gone(
    db: Session, database_url: str, tmp_path: Path
) -> None:
    async with db.transaction() as connection:
        await connection.execute(b"ALTER SCHEMA batchline RENAME TO hidden")
    async with Batchline(database_url, data_dir=tmp_path / "data") as app:

        @app.operation
        async def same(number: int) -> int:
            return number

        with pytest.raises(DatabaseUnavailable):
            await app.submit(same, [1])
        async with db.transaction() as connection:
            await connection.execute(b"ALTER SCHEMA hidden RENAME TO batchline")
        assert await app.amap(same, [1]) == [1]


def test_an_unknown_keyword_of_an_operation_is_named() -> None:
    with pytest.raises(TypeError, match=r"app\.operation has no keyword 'tmeout'; it has name"):
        Batchline().operation(tmeout=1)  # type: ignore[call-overload]

"""Submissions in a transaction of the caller."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session as OrmSession

from batchline import Batchline, InvalidItem
from batchline.store.guest import UnusableConnection
from batchline.store.session import Session
from tests.support.rows import counted_rows

NOTHING = {"batches": 0, "files": 0, "lanes": 0, "lines": 0}
OURS = {"batches": 1, "files": 1, "lanes": 1, "lines": 3}


@pytest.fixture
def square(app: Batchline) -> Any:
    @app.operation
    async def square(number: int) -> int:
        return number * number

    return square


@pytest.fixture
def sync_app(database_url: str, tmp_path: Path) -> Iterator[Batchline]:
    with Batchline(database_url, data_dir=tmp_path / "data") as app:

        @app.operation
        def square(number: int) -> int:
            return number * number

        yield app


async def test_a_batch_exists_when_the_caller_commits(
    app: Batchline, square: Any, database_url: str, db: Session
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        batch = await app.submit(square, range(3), connection=connection)
        assert await counted_rows(db) == NOTHING
        with pytest.raises(LookupError):
            await batch.status()
        await connection.commit()
    assert await counted_rows(db) == OURS
    await batch.wait()
    assert [result.value async for result in batch.results()] == [0, 1, 4]


async def test_a_rollback_leaves_no_batch_no_lines_and_no_file(
    app: Batchline, square: Any, database_url: str, db: Session
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("CREATE TABLE orders (id integer)")
        await app.submit(square, range(3), connection=connection)
        await connection.rollback()
    assert await counted_rows(db) == NOTHING


async def test_a_refused_item_undoes_the_submission_and_nothing_else(
    app: Batchline, square: Any, database_url: str, db: Session
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("CREATE TABLE orders (id integer)")
        with pytest.raises(InvalidItem):
            await app.submit(square, [1, "two"], connection=connection)
        await app.submit(square, range(3), connection=connection)
        await connection.execute("INSERT INTO orders VALUES (1)")
        await connection.commit()
    assert await counted_rows(db) == OURS


async def test_it_works_within_a_savepoint_of_the_caller(
    app: Batchline, square: Any, database_url: str, db: Session
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
        connection.transaction(),
    ):
        await app.submit(square, range(3), connection=connection)
        async with connection.transaction() as inner:
            await app.submit(square, range(3), connection=connection)
            raise psycopg.Rollback(inner)
    assert await counted_rows(db) == OURS


async def test_the_handlers_of_the_connection_stay_the_callers(
    app: Batchline, square: Any, database_url: str
) -> None:
    heard: list[str | None] = []
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        await app.submit(square, range(3), connection=connection)
        await connection.execute("DO $$ BEGIN RAISE NOTICE 'still here'; END $$")
    assert heard == ["still here"]


def _url(database_url: str) -> URL:
    words = psycopg.conninfo.conninfo_to_dict(database_url)
    return URL.create("postgresql+psycopg", query={name: str(word) for name, word in words.items()})


@asynccontextmanager
async def _async_session(database_url: str) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(_url(database_url))
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


async def test_an_async_session_of_sqlalchemy_decides(
    app: Batchline, square: Any, database_url: str, db: Session
) -> None:
    async with _async_session(database_url) as session:
        await app.submit(square, range(3), connection=session)
        await session.rollback()
        assert await counted_rows(db) == NOTHING
        await app.submit(square, range(3), connection=await session.connection())
        await session.commit()
        assert await counted_rows(db) == OURS


@contextmanager
def _connections(database_url: str) -> Iterator[tuple[Any, Any]]:
    engine = create_engine(_url(database_url))
    try:
        with engine.connect() as connection, OrmSession(engine) as session:
            yield connection, session
    finally:
        engine.dispose()


def _count(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM batchline.batches").fetchone()
        assert row is not None
        return int(row[0])


def test_blocking_connections_decide(sync_app: Batchline, database_url: str) -> None:
    square: Any = sync_app.operations["square"]
    with psycopg.connect(database_url) as connection:
        sync_app.sync.submit(square, range(3), connection=connection)
        connection.rollback()
        assert _count(database_url) == 0
        batch = sync_app.sync.submit(square, range(3), connection=connection)
        assert _count(database_url) == 0
        connection.commit()
    assert _count(database_url) == 1
    batch.wait()
    assert [result.value for result in batch.results()] == [0, 1, 4]


@pytest.mark.parametrize("nth", [0, 1])
def test_blocking_connections_and_sessions_of_sqlalchemy_decide(
    sync_app: Batchline, database_url: str, nth: int
) -> None:
    square: Any = sync_app.operations["square"]
    with _connections(database_url) as found:
        connection = found[nth]
        sync_app.sync.submit(square, range(3), connection=connection)
        connection.rollback()
        assert _count(database_url) == 0
        sync_app.sync.submit(square, range(3), connection=connection)
        connection.execute(text("SELECT 1"))
        connection.commit()
    assert _count(database_url) == 1


async def test_other_connections_are_refused(app: Batchline, square: Any, database_url: str) -> None:
    with (
        psycopg.connect(database_url) as blocking,
        pytest.raises(UnusableConnection, match=r"use `app.sync.submit"),
    ):
        await app.submit(square, [1], connection=blocking)
    with pytest.raises(UnusableConnection, match=r"builtins.str: give a connection of psycopg 3"):
        await app.submit(square, [1], connection="postgresql://")
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(UnusableConnection, match="has no open transaction"):
            await app.submit(square, [1], connection=connection)
    with pytest.raises(UnusableConnection, match="is closed"):
        await app.submit(square, [1], connection=connection)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        with pytest.raises(psycopg.errors.SyntaxError):
            await connection.execute("SELEC")
        with pytest.raises(UnusableConnection, match="has failed; roll it back"):
            await app.submit(square, [1], connection=connection)
        await connection.rollback()


async def test_a_connection_with_another_encoding_is_refused(
    app: Batchline, square: Any, database_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, client_encoding="latin1") as connection:
        with pytest.raises(UnusableConnection, match="is LATIN1, and a submission needs UTF8; connect with"):
            await app.submit(square, [1], connection=connection)


async def test_other_isolation_levels_are_refused(app: Batchline, square: Any, database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(UnusableConnection, match="is REPEATABLE READ, and a submission needs READ COMM"):
            await app.submit(square, [1], connection=connection)
        await connection.rollback()
        await connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
        with pytest.raises(
            UnusableConnection, match="is SERIALIZABLE, and a submission needs READ COMMITTED"
        ):
            await app.submit(square, [1], connection=connection)
        await connection.rollback()
        await connection.set_isolation_level(None)
        await connection.set_read_only(True)
        with pytest.raises(UnusableConnection, match="is read-only; set its"):
            await app.submit(square, [1], connection=connection)


async def test_the_transaction_begins_with_the_settings_of_the_connection(
    app: Batchline, square: Any, database_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("SET default_transaction_isolation = 'serializable'")
        await connection.commit()
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await connection.set_deferrable(True)
        await app.submit(square, [1], connection=connection)
        cursor = await connection.execute("SHOW transaction_deferrable")
        assert await cursor.fetchone() == ("on",)


async def test_items_from_a_query_on_the_same_connection_do_not_wait_forever(
    app: Batchline, square: Any, database_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:

        async def source() -> AsyncIterator[int]:
            for number in range(2):
                await connection.execute("SELECT 1")
                yield number

        with pytest.raises(psycopg.OperationalError):
            await app.submit(square, source(), connection=connection)
        await connection.rollback()


async def test_map_takes_no_connection(app: Batchline, square: Any) -> None:
    with pytest.raises(TypeError, match="use `submit`"):
        await app.amap(square, [1], connection=object())

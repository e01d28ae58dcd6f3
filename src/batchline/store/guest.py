"""Submissions in one transaction: our own, or that of the caller on a connection that the caller has opened.

Connections of psycopg, and connections and sessions of SQLAlchemy on psycopg. Ours is a second object over
the same libpq connection, so the caller's object need be neither of our class nor asynchronous. Nothing is
prepared, so names cannot collide, and the caller's handlers are put back.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from batchline.store import arrays
from batchline.store.errors import translate
from batchline.store.session import InTransaction, Session, StoreConnection

Driver: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_SUPPORTED = "give a connection of psycopg 3, or a connection or session of SQLAlchemy that uses psycopg 3"


class UnusableConnection(TypeError):
    """No batch can be submitted over this connection. The message is for a person."""


def blocking_driver(connection: object) -> psycopg.Connection[Any]:
    """The psycopg connection behind a blocking one. A transaction of SQLAlchemy is begun, as SQLAlchemy does
    itself before the first statement. Raises UnusableConnection."""
    if _of_sqlalchemy(connection):
        from sqlalchemy import Connection
        from sqlalchemy.orm import Session as OrmSession
        from sqlalchemy.orm import scoped_session

        if isinstance(connection, OrmSession | scoped_session):
            connection = connection.connection()
        if isinstance(connection, Connection):
            if not connection.in_transaction():
                connection.begin()
            connection = connection.connection.driver_connection
    if isinstance(connection, psycopg.Connection):
        return connection
    if isinstance(connection, psycopg.AsyncConnection) or "sync" in type(connection).__name__.lower():
        raise UnusableConnection("the connection is asynchronous: use `await app.submit(...)`")
    raise _unsupported(connection)


async def async_driver(connection: object) -> psycopg.AsyncConnection[Any]:
    """As `blocking_driver`, for an asynchronous one."""
    if _of_sqlalchemy(connection):
        from sqlalchemy import Connection
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
        from sqlalchemy.orm import Session as OrmSession
        from sqlalchemy.orm import scoped_session

        if isinstance(connection, Connection | OrmSession | scoped_session):
            raise _blocking()
        if isinstance(connection, AsyncSession | async_scoped_session):
            connection = await connection.connection()
        if isinstance(connection, AsyncConnection):
            if not connection.in_transaction():
                await connection.begin()
            connection = (await connection.get_raw_connection()).driver_connection
    if isinstance(connection, psycopg.AsyncConnection):
        return connection
    raise _blocking() if isinstance(connection, psycopg.Connection) else _unsupported(connection)


def _of_sqlalchemy(connection: object) -> bool:
    """By the name: SQLAlchemy takes time to import."""
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


def _blocking() -> UnusableConnection:
    return UnusableConnection("the connection is a blocking one: use `app.sync.submit(...)`")


def _unsupported(connection: object) -> UnusableConnection:
    kind = type(connection)
    return UnusableConnection(f"connection is of {kind.__module__}.{kind.__qualname__}: {_SUPPORTED}")


@asynccontextmanager
async def guest(driver: Driver, schema: str) -> AsyncIterator[InTransaction]:
    """A session within the caller's transaction. If this fails, what it did is undone, and nothing else.

    Raises UnusableConnection. The connection's lock is not taken: if the items come from a query on the same
    connection, that would wait for itself. So psycopg raises an error instead.
    """
    with _shared(driver, schema) as connection:
        try:
            await _begin(connection, driver)
            async with connection.transaction(savepoint_name="batchline"):
                yield InTransaction(connection)
        except psycopg.Error as error:
            raise translate(error) from error


@asynccontextmanager
async def long_transaction(session: Session) -> AsyncIterator[InTransaction]:
    """A transaction of our own without a time limit."""
    async with session.open_ended() as connection, connection.transaction():
        yield InTransaction(connection)


async def _begin(connection: StoreConnection, driver: Driver) -> None:
    """Begin the transaction as the caller's object would, if the caller has not. Raises UnusableConnection
    if it keeps one snapshot (functions/require_read_committed_v1.sql)."""
    if connection.pgconn.transaction_status == TransactionStatus.IDLE:
        await connection.set_isolation_level(driver.isolation_level)
        await connection.set_read_only(driver.read_only)
        await connection.set_deferrable(driver.deferrable)
    # psycopg begins the transaction with the first statement.
    cursor = await connection.execute(b"SELECT current_setting('transaction_isolation')")
    row = await cursor.fetchone()
    if row is not None and row[0] != "read committed":
        raise UnusableConnection(
            f"the transaction of the connection is {row[0].upper()}, and a submission needs READ COMMITTED;"
            " roll it back and begin one with that isolation level, or leave `connection` out"
        )


@contextmanager
def _shared(driver: Driver, schema: str) -> Iterator[StoreConnection]:
    if driver.closed:
        raise UnusableConnection("the connection is closed")
    pgconn = driver.pgconn
    if pgconn.transaction_status == TransactionStatus.INERROR:
        raise UnusableConnection("the transaction of the connection has failed; roll it back first")
    if pgconn.transaction_status == TransactionStatus.IDLE and driver.autocommit:
        raise UnusableConnection(
            "the connection is in autocommit mode and has no open transaction;"
            " submit inside `with connection.transaction():`, or leave `connection` out"
        )
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise UnusableConnection("the connection is in pipeline mode; submit outside of it")
    if driver.read_only:
        raise UnusableConnection("the connection is read-only; set its `read_only` to None or False")
    encoding = (pgconn.parameter_status(b"client_encoding") or b"unknown").decode()
    if encoding.upper() != "UTF8":
        raise UnusableConnection(
            f"the client_encoding of the connection is {encoding}, and a submission needs UTF8;"
            " connect with client_encoding='utf8', or leave `connection` out"
        )
    handlers = pgconn.notice_handler, pgconn.notify_handler
    connection = StoreConnection(pgconn)
    try:
        connection.schema = schema
        connection.prepare_threshold = None
        arrays.register(connection)
        yield connection
    finally:
        pgconn.notice_handler, pgconn.notify_handler = handlers
        # Otherwise it would warn that it was not closed. The caller closes it.
        del connection.pgconn

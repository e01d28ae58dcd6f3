"""A session with the database: connects on first use, and drops a connection that fails or stops answering.

Each service of a worker has its own session, so a blocked one does not delay the others. Every statement has
a client-side time limit, and every connection uses TCP keepalives: without them, a silently dropped
connection can block a claim loop for hours. Nothing relies on session state in the server, so everything
works through PgBouncer in transaction mode.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import dict_row
from psycopg.types.string import ByteaBinaryLoader

from batchline.store import arrays, pooler
from batchline.store.address import DEFAULT_SCHEMA, parse
from batchline.store.errors import StatementRefused as StatementRefused
from batchline.store.errors import StorageQuotaExceeded as StorageQuotaExceeded
from batchline.store.errors import StoreFull as StoreFull
from batchline.store.errors import StoreUnavailable as StoreUnavailable
from batchline.store.errors import TenantClosed as TenantClosed
from batchline.store.errors import translate
from batchline.store.statements import Statement

Row = tuple[Any, ...]
AnyRow = TypeVar("AnyRow")

_OPTIONS: dict[str, Any] = {
    # Whatever PGCLIENTENCODING or the URL says: bodies and answers are read and written as UTF-8.
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


# Planning a claim takes longer than running it, so each statement is planned once, whatever its parameters.
# A plan made while a table was small must not scan the whole table once it is large: a claim over 10,000
# lanes took seconds with such a plan, and 0.1 s without sequential scans. Compiling a claim (jit) took a
# second on PostgreSQL 15. A pooler may give us a server connection without these settings: slower, but still
# correct. Claims and settles refuse to run in any other isolation than this one (require_read_committed).
_PLANNING = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
    " SET default_transaction_isolation = 'read committed'"
)
# The server must notice a dead client too. Otherwise a client whose machine is gone keeps its locks for two
# hours, the usual default for keepalives. On a Unix socket these settings have no effect.
_WATCHED = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"


class StoreConnection(psycopg.AsyncConnection[Row]):
    """A connection that knows the schema of the tables."""

    schema: str = DEFAULT_SCHEMA

    async def wait(self, gen: PQGen[AnyRow], *args: Any, **kwargs: Any) -> AnyRow:
        """Wait like psycopg, but raise CancelledError if waiting fails after a cancellation.

        psycopg resumes a cancelled statement to read its result. If the statement was still being sent, that
        raises a TypeError or breaks the connection.
        """
        try:
            return await super().wait(gen, *args, **kwargs)
        except (TypeError, psycopg.OperationalError) as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise
            self.pgconn.finish()
            raise asyncio.CancelledError from error


class Session:
    """One connection to the database, reopened after a failure."""

    def __init__(self, url: str, name: str, *, timeout: float = 30.0) -> None:
        self._url = url
        self._name = name
        self._timeout = timeout
        self._connection: StoreConnection | None = None
        self._lock = asyncio.Lock()

    @property
    def schema(self) -> str:
        return parse(self._url).schema

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def rows(
        self, statement: Statement, params: Mapping[str, Any], *, extra_time: float = 0.0
    ) -> list[Row]:
        """Run one statement in a separate transaction and return its rows."""
        async with self._guarded(self._timeout + extra_time) as connection:
            return await run(connection, statement, params, prepare=True)

    async def records(self, statement: Statement, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Like `rows`, but return dicts by column name."""
        async with self._guarded() as connection:
            cursor = psycopg.AsyncRawCursor(connection, row_factory=dict_row)
            return await _execute(connection, cursor, statement, params, prepare=True)

    async def raw_rows(self, statement: Statement, params: Mapping[str, Any]) -> list[Row]:
        """Like `rows`, but return text as UTF-8 bytes: lines are sent on unchanged."""
        async with self._guarded() as connection:
            cursor = psycopg.AsyncRawCursor(connection)
            cursor.adapters.register_loader("text", ByteaBinaryLoader)
            return await _execute(connection, cursor, statement, params, prepare=True)

    async def together(self, *steps: tuple[Statement, Mapping[str, Any]]) -> list[int]:
        """Run statements in one round trip and one transaction, and return the number of rows of each.

        PostgreSQL takes all that it gets before a Sync as one transaction, and a pipeline sends one Sync, at
        its end. So nothing may be fetched earlier.
        """
        async with self._guarded() as connection:
            cursors = []
            async with connection.pipeline():
                try:
                    for statement, params in steps:
                        cursor = psycopg.AsyncRawCursor(connection)
                        text, names = statement.numbered_in(connection.schema)
                        values = [params[name] for name in names]
                        await cursor.execute(text, values, prepare=True, binary=True)
                        cursors.append(cursor)
                except BaseException:
                    # The Sync at the end would commit what was sent already.
                    await self._abandon()
                    raise
            return [cursor.rowcount for cursor in cursors]

    @asynccontextmanager
    async def transaction(self, *, extra_time: float = 0.0) -> AsyncIterator[StoreConnection]:
        """Run several statements in one transaction, within one time limit.

        The server has the same limit, so that it releases the locks if this process hangs between statements.
        """
        limit = self._timeout + extra_time
        async with self._guarded(limit) as connection, connection.transaction():
            idle = f"SET LOCAL idle_in_transaction_session_timeout = {int(self._timeout * 1000)}"
            await connection.execute(idle.encode())
            try:
                yield connection
            except asyncio.CancelledError:
                # A rollback would wait without any limit for a server that may not answer.
                connection.pgconn.finish()
                raise

    @asynccontextmanager
    async def open_ended(self) -> AsyncIterator[StoreConnection]:
        """Use the connection without a time limit, for streams. Errors are translated."""
        async with self._guarded(limit=None) as connection:
            yield connection

    @asynccontextmanager
    async def _guarded(self, limit: float | None = -1) -> AsyncIterator[StoreConnection]:
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout if limit == -1 else limit):
                    if self._connection is None:
                        self._connection = await connect(self._url, self._name)
                    yield self._connection
            except TimeoutError as error:
                await self._drop()
                raise StoreUnavailable(f"the database did not answer within {self._timeout:g} s") from error
            except psycopg.Error as error:
                meaning = translate(error)
                if isinstance(meaning, StoreUnavailable):
                    await self._drop()
                if meaning is error:
                    raise
                raise meaning from error
            except asyncio.CancelledError:
                await self._drop()
                raise

    async def _abandon(self) -> None:
        """Let nothing of the current transaction be committed."""
        await self._drop()

    async def _drop(self) -> None:
        """Drop the connection. Closing the socket also makes the server abandon the statement."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()


class InTransaction(Session):
    """Runs statements in a transaction that is open already. Its own transactions are savepoints: an act
    that fails in one of them is undone alone. Time limits and errors are those of the outer session."""

    _timeout = 0.0

    def __init__(self, connection: StoreConnection) -> None:
        self._within = connection

    @property
    def schema(self) -> str:
        return self._within.schema

    async def close(self) -> None:
        """Nothing: the outer session has the connection."""

    async def _abandon(self) -> None:
        """Nothing: the outer transaction rolls back."""

    @asynccontextmanager
    async def transaction(self, *, extra_time: float = 0.0) -> AsyncIterator[StoreConnection]:
        async with self._within.transaction():
            yield self._within

    @asynccontextmanager
    async def _guarded(self, limit: float | None = -1) -> AsyncIterator[StoreConnection]:
        yield self._within


async def connect(url: str, name: str) -> StoreConnection:
    """Open a connection. It prepares statements unless a pooler would mix them up."""
    address = parse(url)
    connection = await StoreConnection.connect(
        address.conninfo, autocommit=True, application_name=f"batchline {name}", **_OPTIONS
    )
    connection.schema = address.schema
    try:
        arrays.register(connection)
        cursor = await connection.execute(f"{_PLANNING}; {_WATCHED}; {pooler.WHICH_PROCESS}".encode())
        if await pooler.stands_between(connection, cursor) and not await pooler.keeps_statements(connection):
            # This also disables `prepare=True` of single statements.
            connection.prepare_threshold = None
    except BaseException:
        connection.pgconn.finish()
        raise
    return connection


async def run_records(
    connection: StoreConnection, statement: Statement, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Like `run`, but return dicts by column name."""
    async with connection.cursor(binary=True, row_factory=dict_row) as cursor:
        await cursor.execute(statement.text_in(connection.schema), params)
        return await cursor.fetchall() if cursor.description else []


async def run(
    connection: StoreConnection,
    statement: Statement,
    params: Mapping[str, Any],
    *,
    prepare: bool | None = None,
) -> list[Row]:
    """Run one statement, within the caller's transaction if there is one."""
    return await _execute(connection, psycopg.AsyncRawCursor(connection), statement, params, prepare=prepare)


async def _execute(
    connection: StoreConnection,
    cursor: psycopg.AsyncRawCursor[AnyRow],
    statement: Statement,
    params: Mapping[str, Any],
    *,
    prepare: bool | None = None,
) -> list[AnyRow]:
    text, names = statement.numbered_in(connection.schema)
    await cursor.execute(text, [params[name] for name in names], prepare=prepare, binary=True)
    # `cursor.description` would do, but it creates an object per column.
    result = cursor.pgresult
    return await cursor.fetchall() if result is not None and result.nfields else []

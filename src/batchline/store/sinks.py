"""Rows of results in tables of the user's: inserted in the transaction that settles their items."""

from collections.abc import Iterable
from typing import LiteralString

import psycopg
from psycopg import sql

from batchline.model.sink import SinkRow, SinkTable
from batchline.store.session import StatementRefused, StoreConnection

# The table's own types read the fields: whatever is text in JSON and can be cast.
_INSERT = (
    "INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, %s::jsonb)"
)

_DEFAULTS = "INSERT INTO {table} DEFAULT VALUES"
# A deferred constraint would otherwise refuse a row at the commit, where no one item can be blamed.
_CHECK = b"SET CONSTRAINTS ALL IMMEDIATE"
# The database cannot do it now: connection, conflict of transactions, resources, lock timeout, intervention.
# psycopg's OperationalError also covers what lasts, such as a view that nothing can be inserted into.
_TEMPORARY = ("08", "40", "53", "55P03", "57")


async def insert(connection: StoreConnection, rows: Iterable[SinkRow]) -> None:
    """Insert rows within the caller's transaction. Raises StatementRefused if a table does not take one."""
    groups: dict[tuple[SinkTable, tuple[str, ...]], list[bytes]] = {}
    for each in rows:
        groups.setdefault((each.table, each.columns), []).append(each.row)
    try:
        for (table, columns), values in groups.items():
            await _insert(connection, table, columns, values)
        if groups:
            await connection.execute(_CHECK)
    except psycopg.Error as error:
        if _unavailable(connection, error):
            raise
        raise StatementRefused(f"the sink does not take it: {str(error).strip()}") from error


async def _insert(
    connection: StoreConnection, table: SinkTable, columns: tuple[str, ...], values: list[bytes]
) -> None:
    if columns:
        content = b"[" + b",".join(values) + b"]"
        await connection.execute(_statement(_INSERT, table, columns), [content.decode()])
        return
    for _ in values:
        await connection.execute(_statement(_DEFAULTS, table, columns), [])


def _unavailable(connection: StoreConnection, error: psycopg.Error) -> bool:
    if connection.broken or error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(_TEMPORARY)


def _statement(text: LiteralString, table: SinkTable, columns: tuple[str, ...]) -> sql.Composed:
    parts = (table.name,) if table.schema is None else (table.schema, table.name)
    return sql.SQL(text).format(
        table=_identifier(*parts), columns=sql.SQL(", ").join(map(_identifier, columns))
    )


def _identifier(*parts: str) -> sql.Identifier:
    """psycopg takes a single % for a placeholder, also within quotes."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))

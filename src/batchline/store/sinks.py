"""Rows of results in tables of the user's: inserted in the transaction that settles their items."""

from collections.abc import Iterable

import psycopg
from psycopg import sql

from batchline.model.sink import SinkRow, SinkTable
from batchline.store.session import StatementRefused, StoreConnection

# The table's own types read the fields: whatever is text in JSON and can be cast.
_INSERT = (
    "INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, %s::jsonb)"
)


async def insert(connection: StoreConnection, rows: Iterable[SinkRow]) -> None:
    """Insert rows within the caller's transaction. Raises StatementRefused if a table does not take one."""
    groups: dict[tuple[SinkTable, tuple[str, ...]], list[bytes]] = {}
    for each in rows:
        groups.setdefault((each.table, each.columns), []).append(each.row)
    try:
        for (table, columns), values in groups.items():
            content = b"[" + b",".join(values) + b"]"
            await connection.execute(_statement(table, columns), [content.decode()])
    except (psycopg.OperationalError, psycopg.InterfaceError):
        raise
    except psycopg.Error as error:
        raise StatementRefused(f"the sink does not take it: {str(error).strip()}") from error


def _statement(table: SinkTable, columns: tuple[str, ...]) -> sql.Composed:
    parts = (table.name,) if table.schema is None else (table.schema, table.name)
    return sql.SQL(_INSERT).format(
        table=sql.Identifier(*parts), columns=sql.SQL(", ").join(map(sql.Identifier, columns))
    )

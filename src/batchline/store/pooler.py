"""Whether a pooler stands between a connection and the database, and whether it keeps prepared statements.

A transaction pooler gives each transaction any of its server connections. If it passes the names of prepared
statements through, as PgBouncer does before 1.21, two clients use one name for different statements on one
server connection. The server then refuses a statement or, if the parameters happen to fit, runs the other
client's. So nothing is prepared behind such a pooler. PgBouncer from 1.21 on, and others like it, give the
statements names of their own and prepare them again where they are missing: behind these, all is as usual.
"""

import secrets
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

# A pooler tells its clients process ids that it made up.
WHICH_PROCESS = "SELECT pg_backend_pid()"
_KNOWN_BY_NAME = b"SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)"


async def stands_between(connection: psycopg.AsyncConnection[Any], cursor: psycopg.AsyncCursor[Any]) -> bool:
    """`cursor` has the answer to WHICH_PROCESS as its last result: no question of its own is sent."""
    while cursor.nextset():
        pass
    row = await cursor.fetchone()
    return row is None or row[0] != connection.info.backend_pid


async def keeps_statements(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Prepares a statement that asks whether the server knows it by the name we gave it."""
    name = f"batchline_{secrets.token_hex(8)}".encode()
    # In one transaction, that is, on one server connection.
    async with connection.transaction():
        passed_through = await connection.wait(_known_by_name(connection.pgconn, name))
        if passed_through:
            await connection.execute(b"DEALLOCATE " + name)
    return not passed_through


def _known_by_name(pgconn: PGconn, name: bytes) -> PQGen[bool]:
    pgconn.send_prepare(name, _KNOWN_BY_NAME)
    _only(pgconn, (yield from execute(pgconn)))
    pgconn.send_query_prepared(name, [name])
    return _only(pgconn, (yield from execute(pgconn))).get_value(0, 0) == b"t"


def _only(pgconn: PGconn, results: list[PGresult]) -> PGresult:
    (result,) = results
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result)
    return result

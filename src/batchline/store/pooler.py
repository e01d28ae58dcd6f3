"""Detect a connection pooler, and whether it supports prepared statements.

A transaction pooler runs each transaction on any of its server connections. If it passes the names of
prepared statements through, as PgBouncer before 1.21 does, two clients use one name for different statements
on one server connection. The server then refuses a statement or, if the parameters happen to fit, runs the
other client's. So nothing is prepared behind such a pooler. PgBouncer from 1.21 on, and similar poolers,
rename the statements and prepare them again where they are missing, so they need no special treatment.
"""

import secrets
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

# A pooler sends its clients made-up process ids, so this differs from the connection's backend_pid.
WHICH_PROCESS = "SELECT pg_backend_pid()"
_KNOWN_BY_NAME = b"SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)"


async def stands_between(connection: psycopg.AsyncConnection[Any], cursor: psycopg.AsyncCursor[Any]) -> bool:
    """Whether the connection goes through a pooler.

    `cursor` has the answer to WHICH_PROCESS as its last result.
    """
    while cursor.nextset():
        pass
    row = await cursor.fetchone()
    return row is None or row[0] != connection.info.backend_pid


async def keeps_statements(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether prepared statements are safe: the pooler must not pass their names through to the server.

    Prepares a statement that queries whether the server knows it by the name we chose.
    """
    name = f"batchline_{secrets.token_hex(8)}".encode()
    # One transaction runs on one server connection.
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

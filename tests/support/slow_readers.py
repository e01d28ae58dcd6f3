"""Clients that ask for content and do not read it, and content that is more than sockets keep for them.

output = on(database_url, lambda db: a_running_output(db, "acme"))
with stalled(server.url, server.key("acme"), output, 20): …
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import psutil

from batchline.model import DEFAULT_TENANT
from batchline.model.ids import FILE, new_id, show
from batchline.store.session import Session
from tests.support.builders import a_batch, on, sql

LINES, WIDTH = 2000, 20_000


async def a_running_output(
    db: Session, tenant: str = DEFAULT_TENANT, *, lines: int = LINES, width: int = WIDTH
) -> str:
    """The output of a batch that has one more line to run, written by plain SQL: it may be much."""
    batch = await a_batch(db, lines + 1, tenant=tenant)
    output_id = new_id()
    query = """
        WITH batch AS (
            UPDATE batchline.batches SET planned_output_id = %(output)s, completed = %(lines)s
                WHERE id = %(id)s
        ),
        lane AS (
            UPDATE batchline.lanes SET next = %(lines)s WHERE batch_id = %(id)s RETURNING id
        )
        INSERT INTO batchline.results
            (lane_id, line_no, ordinal, outcome, attempt, input_tokens, output_tokens, output)
        SELECT id, n, n - 1, 'completed', 1, 0, 0, '{"answer": ' || n || '}' || repeat(' ', %(width)s)
        FROM lane, generate_series(1, %(lines)s) AS n
    """
    await sql(db, query, output=output_id, id=batch.id, lines=lines, width=width)
    return show(FILE, output_id)


def requested_for(url: str, key: str, path: str) -> socket.socket:
    """A connection on which something was asked for, with little room for the answer."""
    location = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((location.hostname, location.port))
    head = f"GET {path} HTTP/1.1\r\nhost: {location.netloc}\r\n"
    connection.sendall(f"{head}authorization: Bearer {key}\r\n\r\n".encode())
    return connection


def begun_reading(url: str, key: str, file_id: str) -> socket.socket:
    """A download of which the client takes its first bytes and no more."""
    connection = requested_for(url, key, f"/v1/files/{file_id}/content")
    answered = connection.recv(15)
    assert answered == b"HTTP/1.1 200 OK", answered
    return connection


@contextmanager
def stalled(url: str, key: str, file_id: str, number: int) -> Iterator[Sequence[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(begun_reading(url, key, file_id)) for _ in range(number)]


def streaming(url: str) -> int:
    """Connections of downloads that do something, or that keep old rows from being removed."""
    query = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database()
          AND application_name = 'batchline stream'
          AND (state <> 'idle' OR backend_xmin IS NOT NULL)
    """
    ((count,),) = on(url, lambda db: sql(db, query))
    return int(count)


def is_let_go(reader: socket.socket) -> bool:
    """Whether a server in this process has given up the other end of a connection."""
    port = reader.getsockname()[1]
    found = psutil.Process().net_connections("tcp4")
    return not any(each.raddr and each.raddr.port == port and each.fd != -1 for each in found)


def rest_of(connection: socket.socket) -> bytes:
    """What the server still sends until it hangs up."""
    parts: list[bytes] = []
    with suppress(ConnectionResetError):
        while part := connection.recv(1024 * 1024):
            parts.append(part)
    return b"".join(parts)

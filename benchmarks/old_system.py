"""The system that `batchline adopt` replaces: tables with one row per request, a writer, and a daemon.

The tables are filled with batches of which 60 % have completed with an answer of about 600 bytes, 1 % has
failed, some are in flight, and the rest is pending. Every line has a body of its own, so that the upstream's
ledger tells lines apart.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import psycopg
from pyreqwest.client import Client, ClientBuilder

# In flight in each batch: sent by a daemon that died before it stored the answers.
IN_FLIGHT = 25
# Between two transactions of the writer, in seconds.
_PAUSE = 0.1
# Of the daemon: rows per claim, and requests in flight.
_CLAIMED = 2_000
_CONCURRENCY = 64

_TABLES = Path(__file__).parents[1] / "examples/seeds/old_tables.sql"
_FILL = """
WITH file AS (INSERT INTO files (name) VALUES ('input.jsonl') RETURNING id),
template AS (
    INSERT INTO request_templates (file_id, custom_id, line_number, method, path, body, model)
    SELECT file.id, 'line-' || n, n, 'POST', '/v1/chat/completions',
        format(
            '{"model": "model", "messages": [{"role": "user", "content": "%%s %%s %%s"}]}',
            file.id, n, repeat('word ', 30)
        ),
        'model'
    FROM file CROSS JOIN generate_series(1, %(lines)s) AS n
    RETURNING id, custom_id, line_number AS n
),
batch AS (INSERT INTO batches (file_id) SELECT id FROM file RETURNING id)
INSERT INTO requests (
    batch_id, template_id, state, custom_id, model, response_status, response_body, completed_at, error,
    failed_at, daemon_id, claimed_at, started_at
)
SELECT batch.id, t.id, s.state, t.custom_id, 'model',
    CASE s.state WHEN 'completed' THEN 200 END,
    CASE s.state WHEN 'completed' THEN %(answer)s END,
    CASE s.state WHEN 'completed' THEN now() END,
    CASE s.state WHEN 'failed' THEN '{"type": "Timeout", "details": {"error": "no answer"}}' END,
    CASE s.state WHEN 'failed' THEN now() END,
    CASE s.state WHEN 'processing' THEN gen_random_uuid() END,
    CASE s.state WHEN 'processing' THEN now() - interval '1 hour' END,
    CASE s.state WHEN 'processing' THEN now() - interval '1 hour' END
FROM batch
CROSS JOIN template AS t
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN t.n <= %(lines)s * 0.6 THEN 'completed'
        WHEN t.n <= %(lines)s * 0.61 THEN 'failed'
        WHEN t.n <= %(lines)s * 0.61 + %(in_flight)s THEN 'processing'
        ELSE 'pending'
    END AS state
) AS s
"""
_INDEXES = """
CREATE INDEX ON requests (template_id);
CREATE INDEX ON requests (batch_id) WHERE state = 'pending';
VACUUM ANALYZE
"""
_COMPLETE = """
UPDATE requests
SET state = 'completed', response_status = 200, response_body = %(answer)s, completed_at = now()
WHERE id IN (SELECT id FROM requests WHERE state = 'pending' LIMIT 50 FOR UPDATE SKIP LOCKED)
"""
ANSWER = '{"id": "answer", "choices": [{"message": {"content": "%s"}}], "usage": {"prompt_tokens": 50}}' % (
    "word " * 100
)
_IN_FLIGHT = "SELECT id, template_id FROM requests WHERE state = 'processing'"
_CLAIM = """
UPDATE requests
SET state = 'processing', daemon_id = gen_random_uuid(), claimed_at = now(), started_at = now()
WHERE id IN (SELECT id FROM requests WHERE state = 'pending' LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING id, template_id
"""
_BODIES = "SELECT path, body FROM request_templates WHERE id = ANY (%(ids)s)"
_STORE = """
UPDATE requests
SET state = 'completed', response_status = 200, response_body = %(answer)s, completed_at = now()
WHERE id = ANY (%(ids)s)
"""


def fill(url: str, batches: int, lines: int) -> None:
    params = {"lines": lines, "answer": ANSWER, "in_flight": IN_FLIGHT}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES.read_bytes())
        for _ in range(batches):
            connection.execute(_FILL.encode(), params)
        for statement in _INDEXES.split(";"):
            connection.execute(statement.encode())


class Writer:
    """Completes requests, 50 at a time, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.rows = 0
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stopped.is_set():
                self.rows += connection.execute(_COMPLETE.encode(), {"answer": ANSWER}).rowcount
                self._stopped.wait(_PAUSE)


async def send_in_flight(url: str, upstream: str) -> int:
    """Send what is in flight, and lose the answers: the daemon has died."""
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        ClientBuilder().build() as client,
    ):
        found = await (await connection.execute(_IN_FLIGHT.encode())).fetchall()
        await _send(connection, client, upstream, [template_id for _, template_id in found])
    return len(found)


async def work(url: str, upstream: str) -> int:
    """Run a daemon until nothing is pending. It claims, sends, and stores the answers."""
    done = 0
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        ClientBuilder().build() as client,
    ):
        while claimed := await (await connection.execute(_CLAIM.encode(), {"limit": _CLAIMED})).fetchall():
            await _send(connection, client, upstream, [template_id for _, template_id in claimed])
            stored = {"answer": ANSWER, "ids": [request_id for request_id, _ in claimed]}
            await connection.execute(_STORE.encode(), stored)
            done += len(claimed)
    return done


async def _send(
    connection: psycopg.AsyncConnection, client: Client, upstream: str, template_ids: Sequence[UUID]
) -> None:
    rows = await (await connection.execute(_BODIES.encode(), {"ids": list(template_ids)})).fetchall()
    remaining = iter(rows)
    async with asyncio.TaskGroup() as senders:
        for _ in range(_CONCURRENCY):
            senders.create_task(_send_each(client, upstream, remaining))


async def _send_each(client: Client, upstream: str, remaining: Iterator[tuple[str, str]]) -> None:
    for path, body in remaining:
        response = await client.post(upstream + path).body_bytes(body.encode()).build().send()
        await response.bytes()
        assert response.status == 200, response.status

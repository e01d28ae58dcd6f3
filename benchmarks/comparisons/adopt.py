"""Adopting a database with one row per request, and going back: how long that takes, and what writers notice.

1,000,000 requests in four batches of one file each: 60 % completed with an answer of about 600 bytes, 1 %
failed, 100 in flight, the rest pending. While `adopt prepare` runs, an old writer goes on: it completes 50
requests per transaction and then pauses for 100 ms. It stops for the cutover. Then 100,000 items are claimed
and settled in Batchline, and `adopt rollback` writes them back. The window is the time in which the old
tables are locked. The writer's rate alone is measured before prepare.
"""

import asyncio
import threading
from time import perf_counter

import psycopg

from batchline.adopt import phases, verification
from batchline.batches.output import answered_line
from batchline.model import Completed
from batchline.model.ids import new_id
from batchline.store import spans
from batchline.store.adoption import CutoverSettings
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, ratio
from benchmarks.drain import CHUNK, LEASE

_BATCHES = 4
# Between two transactions of the old writer, in seconds.
_PAUSE = 0.1
_SETTINGS = CutoverSettings("default", False, None, 86_400.0)

_TABLES = """
CREATE TABLE files (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text NOT NULL);
CREATE TABLE request_templates (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), file_id uuid REFERENCES files, custom_id text,
    line_number integer NOT NULL, method text NOT NULL, path text NOT NULL, body text NOT NULL,
    model text NOT NULL
);
CREATE TABLE batches (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), file_id uuid REFERENCES files,
    created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz, cancelling_at timestamptz
);
CREATE TABLE requests (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), batch_id uuid REFERENCES batches,
    template_id uuid REFERENCES request_templates, state text NOT NULL, custom_id text, model text NOT NULL,
    retry_attempt integer NOT NULL DEFAULT 0, not_before timestamptz, daemon_id uuid, claimed_at timestamptz,
    started_at timestamptz, response_status smallint, response_body text, completed_at timestamptz,
    error text, failed_at timestamptz, canceled_at timestamptz
);
"""
_FILL = """
WITH file AS (INSERT INTO files (name) VALUES ('input.jsonl') RETURNING id),
template AS (
    INSERT INTO request_templates (file_id, custom_id, line_number, method, path, body, model)
    SELECT file.id, 'line-' || n, n, 'POST', '/v1/chat/completions',
        format(
            '{"model": "model", "messages": [{"role": "user", "content": "%%s %%s"}]}', n, repeat('word ', 40)
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
        WHEN t.n <= %(lines)s * 0.61 + 25 THEN 'processing'
        ELSE 'pending'
    END AS state
) AS s
"""
_INDEXES = """
CREATE INDEX ON request_templates (file_id, line_number);
CREATE INDEX ON requests (batch_id, state);
CREATE INDEX ON requests (template_id);
CREATE INDEX ON requests (batch_id) WHERE state = 'pending';
VACUUM ANALYZE
"""
_COMPLETE = """
UPDATE requests
SET state = 'completed', response_status = 200, response_body = %(answer)s, completed_at = now()
WHERE id IN (SELECT id FROM requests WHERE state = 'pending' LIMIT 50 FOR UPDATE SKIP LOCKED)
"""
_ANSWER = '{"id": "answer", "choices": [{"message": {"content": "%s"}}], "usage": {"prompt_tokens": 50}}' % (
    "word " * 100
)


async def compare(bench: Bench) -> list[Figure]:
    requests = bench.size(1_000_000, quick=8_000)
    with bench.server.database() as url:
        _fill(url, requests // _BATCHES)
        bench.server.settle_down()
        alone = await _written(url, 0.2 if bench.quick else 5.0)
        async with Session(url, "benchmark", timeout=3600) as session:
            with _Writer(url) as writer:
                begun = perf_counter()
                await phases.prepare(session, "public")
                prepare = perf_counter() - begun
            during = writer.rows / prepare
            cutover = await phases.cut_over(session, _SETTINGS)
            assert (await verification.verify(session, one_in=100)).findings == []
            worked = await _work(session, requests // 10)
            back = await phases.roll_back(session)
            assert back.results == worked, (back.results, worked)
    series = {
        name: Series(name, unit, [value])
        for name, unit, value in (
            ("prepare", "s", prepare),
            ("locked window of the cutover", "s", cutover.seconds),
            (f"rollback of {worked:,} results", "s", back.seconds),
            ("writer during prepare", "rows/s", during),
            ("writer alone", "rows/s", alone),
        )
    }
    prepared, window, rolled_back, meanwhile, undisturbed = series.values()
    return [
        ratio(f"{requests:,} requests: the locked window, to prepare", window, prepared),
        ratio(f"{requests:,} requests: rollback, to prepare", rolled_back, prepared),
        ratio("the old writer during prepare, to the same alone", meanwhile, undisturbed),
    ]


def _fill(url: str, lines: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        for _ in range(_BATCHES):
            connection.execute(_FILL.encode(), {"lines": lines, "answer": _ANSWER})
        for statement in _INDEXES.split(";"):
            connection.execute(statement.encode())


class _Writer:
    """An old program that completes requests, 50 at a time, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.rows = 0
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "_Writer":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stopped.is_set():
                self.rows += connection.execute(_COMPLETE.encode(), {"answer": _ANSWER}).rowcount
                self._stopped.wait(_PAUSE)


async def _written(url: str, seconds: float) -> float:
    with _Writer(url) as writer:
        await asyncio.sleep(seconds)
    return writer.rows / seconds


async def _work(session: Session, items: int) -> int:
    """Claim and settle so many items, as a worker does."""
    worker, done = WorkerId(new_id(), "benchmark", LEASE), 0
    while done < items:
        claims = await spans.claim(session, worker, Scope(), CHUNK)
        taken = await spans.fetch(session, worker.id, claims) if claims else []
        if not taken:
            break
        verdicts = [Completed(item, 200, answered_line(item, 200, "req", _ANSWER.encode())) for item in taken]
        await spans.settle(session, worker.id, verdicts)
        done += len(taken)
    await spans.release(session, worker.id)
    return done

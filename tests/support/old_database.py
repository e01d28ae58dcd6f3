"""Databases with one row per request, as `batchline adopt` finds them, and an old daemon that works on one.

    old = OldDatabase(database_url, FUSILLADE)
    file = old.file(10)
    batch = old.batch(file)
    old.end(batch, range(1, 4), "completed")
    old.daemon(upstream.url).work(5)

There are two shapes: the tables of the design that rows per request come from, with few columns, and those of
the public project fusillade, with its constraints, its daemons and its archive.
"""

import json
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg

from tests.support.repository import ROOT

EAGER = (ROOT / "examples/seeds/old_tables.sql").read_text()

FUSILLADE: LiteralString = """
CREATE TABLE files (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    description text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    size_bytes bigint NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'processed' CHECK (status IN ('processed', 'error', 'deleted', 'expired')),
    error_message text,
    purpose text,
    expires_at timestamptz,
    deleted_at timestamptz,
    uploaded_by text,
    size_finalized boolean NOT NULL DEFAULT false,
    api_key_id uuid,
    source_connection_id uuid,
    source_external_key text
);
CREATE TABLE request_templates (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    file_id uuid REFERENCES files (id) ON DELETE SET NULL,
    endpoint text NOT NULL DEFAULT 'http://upstream.example',
    method text NOT NULL,
    path text NOT NULL,
    body text NOT NULL DEFAULT '',
    model text NOT NULL,
    api_key text NOT NULL DEFAULT 'secret',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    custom_id text,
    line_number integer NOT NULL DEFAULT 0,
    body_byte_size bigint NOT NULL DEFAULT 0
);
CREATE INDEX ON request_templates (file_id, line_number);
CREATE TABLE batches (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    file_id uuid REFERENCES files (id) ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    metadata jsonb DEFAULT '{}',
    completion_window text NOT NULL DEFAULT '24h',
    endpoint text NOT NULL DEFAULT '/v1/chat/completions',
    output_file_id uuid REFERENCES files (id) ON DELETE SET NULL,
    error_file_id uuid REFERENCES files (id) ON DELETE SET NULL,
    created_by text NOT NULL DEFAULT '',
    expires_at timestamptz NOT NULL DEFAULT now() + interval '1 day',
    cancelling_at timestamptz,
    errors jsonb,
    total_requests bigint NOT NULL DEFAULT 0,
    requests_started_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    cancelled_at timestamptz,
    deleted_at timestamptz,
    notification_sent_at timestamptz,
    location text NOT NULL DEFAULT 'live' CHECK (location IN ('live', 'archive', 'split')),
    archive_bucket date
);
CREATE TABLE requests (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    batch_id uuid REFERENCES batches (id) ON DELETE SET NULL,
    template_id uuid REFERENCES request_templates (id) ON DELETE SET NULL,
    state text NOT NULL DEFAULT 'pending',
    retry_attempt integer NOT NULL DEFAULT 0,
    not_before timestamptz,
    daemon_id uuid,
    claimed_at timestamptz,
    started_at timestamptz,
    response_status smallint,
    response_body text,
    completed_at timestamptz,
    error text,
    failed_at timestamptz,
    canceled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    custom_id text,
    model text NOT NULL,
    response_size bigint NOT NULL DEFAULT 0,
    routed_model text,
    service_tier text,
    created_by text,
    CHECK (state IN ('pending', 'claimed', 'processing', 'completed', 'failed', 'canceled')),
    CHECK (state <> 'pending' OR (daemon_id IS NULL AND claimed_at IS NULL AND started_at IS NULL)),
    CHECK (state <> 'claimed' OR (daemon_id IS NOT NULL AND claimed_at IS NOT NULL AND started_at IS NULL)),
    CHECK (state <> 'processing' OR num_nulls(daemon_id, claimed_at, started_at) = 0),
    CHECK (state <> 'completed' OR num_nulls(response_status, response_body, completed_at) = 0),
    CHECK (state <> 'failed' OR (error IS NOT NULL AND failed_at IS NOT NULL)),
    CHECK (state <> 'canceled' OR canceled_at IS NOT NULL),
    CHECK ((batch_id IS NULL) <> (created_by IS NULL))
);
CREATE INDEX ON requests (batch_id, state);
CREATE TABLE batch_requests_archive (LIKE requests INCLUDING CONSTRAINTS, archive_bucket date NOT NULL)
    PARTITION BY RANGE (archive_bucket);
CREATE TABLE batch_requests_archive_w1 PARTITION OF batch_requests_archive
    FOR VALUES FROM ('2026-01-05') TO ('2026-01-12');
CREATE TABLE daemons (
    id uuid PRIMARY KEY,
    status text NOT NULL CHECK (status IN ('initializing', 'running', 'dead')),
    hostname text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    config_snapshot jsonb NOT NULL,
    started_at timestamptz NOT NULL,
    last_heartbeat timestamptz,
    stopped_at timestamptz
);
"""

SHAPES = {"eager": EAGER, "fusillade": FUSILLADE}

_CLAIM = """
UPDATE requests SET state = 'processing', daemon_id = %(daemon)s, claimed_at = now(), started_at = now()
WHERE id IN (
    SELECT r.id FROM requests AS r
    JOIN batches AS b ON b.id = r.batch_id
    WHERE r.state = 'pending' AND b.cancelling_at IS NULL AND (r.not_before IS NULL OR r.not_before <= now())
    LIMIT %(limit)s
    FOR UPDATE OF r SKIP LOCKED
)
RETURNING id, template_id
"""
_COMPLETE = """
UPDATE requests SET state = 'completed', response_status = %s, response_body = %s, completed_at = now()
WHERE id = %s
"""


class OldDatabase:
    """A database of one of the shapes, in which every act commits."""

    def __init__(self, url: str, shape: str, *, schema: str = "public", create: bool = True) -> None:
        self.shape = shape
        self.connection = psycopg.connect(url, autocommit=True)
        self.run("SELECT set_config('search_path', quote_ident(%s), false)", schema)
        if create:
            self.connection.execute(SHAPES[shape].encode())

    def close(self) -> None:
        self.connection.close()

    def run(self, query: str, *params: object, **named: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), named or params or None)
        return cursor.fetchall() if cursor.description else []

    def file(self, lines: int, *, models: Iterable[str] = ("model",)) -> UUID:
        """An input file. Models take turns; line 7 has the custom id `line-7`."""
        file_id = uuid4()
        self.run("INSERT INTO files (id, name) VALUES (%s, 'input.jsonl')", file_id)
        self.run(
            """
            INSERT INTO request_templates (file_id, custom_id, line_number, method, path, body, model)
            SELECT %s, 'line-' || n, n, 'POST', '/v1/chat/completions',
                format(
                    '{"model": "%%s",' || E'\n' || ' "messages": [{"role": "user", "content": "%%s %%s"}]}',
                    m, %s::text, n), m
            FROM generate_series(1, %s) AS n
            CROSS JOIN LATERAL (SELECT (%s::text[])[1 + (n - 1) %% %s] AS m) AS model
            """,
            file_id,
            file_id.hex[:6],
            lines,
            list(models),
            len(list(models)),
        )
        return file_id

    def batch(self, file_id: UUID, **columns: object) -> UUID:
        """A batch with a pending request for each template of its file: the mass insert."""
        batch_id = uuid4()
        names = "".join(f", {name}" for name in columns)
        values = "".join(", %s" for _ in columns)
        self.run(
            f"INSERT INTO batches (id, file_id{names}) VALUES (%s, %s{values})",
            batch_id,
            file_id,
            *columns.values(),
        )
        self.run(
            """
            INSERT INTO requests (batch_id, template_id, state, custom_id, model)
            SELECT %s, id, 'pending', custom_id, model FROM request_templates WHERE file_id = %s
            """,
            batch_id,
            file_id,
        )
        return batch_id

    def end(self, batch_id: UUID, lines: Iterable[int], state: str, *, retries: int = 0) -> None:
        """Requests of these lines have ended, or are in flight, after so many failed attempts."""
        changes = {
            "completed": """response_status = 200, completed_at = now(), response_body = format(
                '{"id": "answer-%%s", "usage": {"prompt_tokens": 3, "completion_tokens": 5}}',
                t.line_number)""",
            "failed": """failed_at = now(), error =
                '{"type": "NonRetriableHttpStatus", "details": {"status": 400, "body": "{\\"bad\\": 1}"}}'""",
            "canceled": "canceled_at = now()",
            "pending": "not_before = NULL",
            "claimed": "daemon_id = gen_random_uuid(), claimed_at = now() - interval '1 hour'",
            "processing": """daemon_id = gen_random_uuid(), claimed_at = now() - interval '1 hour',
                started_at = now() - interval '1 hour'""",
        }[state]
        self.run(
            f"""
            UPDATE requests AS r SET state = %s, retry_attempt = %s, {changes}
            FROM request_templates AS t
            WHERE t.id = r.template_id AND r.batch_id = %s AND t.line_number = ANY (%s)
            """,
            state,
            retries,
            batch_id,
            list(lines),
        )

    def states(self, batch_id: UUID) -> dict[str, int]:
        rows = self.run("SELECT state, count(*) FROM requests WHERE batch_id = %s GROUP BY 1", batch_id)
        return dict(rows)

    def daemon(self, upstream: str) -> "OldDaemon":
        return OldDaemon(self, upstream, uuid4())


@dataclass(frozen=True, slots=True)
class OldDaemon:
    """Claims rows, sends several at a time, and stores the answers."""

    old: OldDatabase
    upstream: str
    id: UUID

    def work(self, limit: int, *, dies_after: int | None = None) -> int:
        """Claim so many requests and run them. With `dies_after`, the answers to the others are lost."""
        claimed = self.old.run(_CLAIM, daemon=self.id, limit=limit)
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(self.send, [template_id for _, template_id in claimed]))
        for (request_id, _), (status, body) in list(zip(claimed, answers, strict=True))[:dies_after]:
            self.old.run(_COMPLETE, status, body, request_id)
        return len(claimed)

    def send(self, template_id: UUID) -> tuple[int, str]:
        ((path, body),) = self.old.run("SELECT path, body FROM request_templates WHERE id = %s", template_id)
        request = urllib.request.Request(
            self.upstream + path, body.encode(), {"content-type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.dumps(json.load(response))

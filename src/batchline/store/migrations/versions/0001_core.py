"""Core tables: files, lines, batches, lanes, spans, results and workers.

Nothing is written for an item until it is finished, so there are two kinds of tables. `lines` and
`results` are large and insert-only. `batches`, `lanes`, `spans` and `workers` are small and hot: half of
each page stays free, so that updates stay on the page (HOT), and they are vacuumed early.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Small hot tables: vacuum after a few hundred dead rows, without cost-based delays.
HOT = """
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
"""

TABLES = f"""
CREATE TYPE outcome AS ENUM ('completed', 'failed');

CREATE TABLE files (
    id          uuid PRIMARY KEY,
    -- Identifies the file in `lines`, where a uuid would cost eight more bytes per row.
    no          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    tenant      text NOT NULL,
    purpose     text NOT NULL,
    filename    text NOT NULL,
    bytes       bigint NOT NULL,
    line_count  integer NOT NULL,
    -- SHA-256 of the input: the same input is found and not stored again.
    digest      bytea,
    -- Key of the content in the object store; NULL if the content is in `lines`.
    object_key  text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz
);
CREATE INDEX files_digest ON files (tenant, digest) WHERE digest IS NOT NULL;
CREATE INDEX files_newest ON files (tenant, created_at, id);

-- The lines of a file that share a model and a url. Every batch over the file has one lane for each.
CREATE TABLE file_lanes (
    file_no  bigint NOT NULL,
    lane_no  integer NOT NULL,
    model    text NOT NULL,
    url      text NOT NULL,
    total    integer NOT NULL,
    PRIMARY KEY (file_no, lane_no)
);

-- No foreign key: one trigger per row would halve the speed of COPY. One transaction writes the lines and
-- inserts the `files` row.
CREATE TABLE lines (
    file_no    bigint NOT NULL,
    lane_no    integer NOT NULL,
    ordinal    integer NOT NULL,
    line_no    integer NOT NULL,
    custom_id  text NOT NULL,
    body       text NOT NULL,
    PRIMARY KEY (file_no, lane_no, ordinal)
);

CREATE TABLE batches (
    id                uuid PRIMARY KEY,
    tenant            text NOT NULL,
    file_id           uuid NOT NULL,
    endpoint          text,
    completion_window text NOT NULL,
    -- How its lines are run: upstream, api_key_env, max_attempts, timeout.
    settings          jsonb NOT NULL,
    metadata          jsonb,
    -- Lets a repeated command find its batch.
    resume_key        text,

    total             integer NOT NULL CHECK (total > 0),
    completed         integer NOT NULL DEFAULT 0,
    failed            integer NOT NULL DEFAULT 0,
    input_tokens      bigint NOT NULL DEFAULT 0,
    cached_tokens     bigint NOT NULL DEFAULT 0,
    output_tokens     bigint NOT NULL DEFAULT 0,
    reasoning_tokens  bigint NOT NULL DEFAULT 0,

    -- The status is derived from these, so it cannot disagree with them.
    created_at        timestamptz NOT NULL DEFAULT now(),
    in_progress_at    timestamptz,
    expires_at        timestamptz NOT NULL,
    paused_at         timestamptz,
    cancelling_at     timestamptz,
    expiring_at       timestamptz,
    finalizing_at     timestamptz,
    completed_at      timestamptz,
    cancelled_at      timestamptz,
    expired_at        timestamptz,
    failed_at         timestamptz,
    ended_at          timestamptz GENERATED ALWAYS AS
                          (coalesce(completed_at, cancelled_at, expired_at, failed_at)) STORED,

    finalizer         uuid,
    output_file_id    uuid,
    error_file_id     uuid,
    summary           jsonb,
    CHECK (completed + failed <= total)
) WITH ({HOT});
CREATE INDEX batches_newest ON batches (tenant, created_at, id);
-- Two identical commands that start at once create one batch: the second finds the first's.
CREATE UNIQUE INDEX batches_resume ON batches (tenant, resume_key) WHERE resume_key IS NOT NULL;
CREATE INDEX batches_file ON batches (file_id);
CREATE INDEX batches_running ON batches (expires_at) WHERE finalizing_at IS NULL AND ended_at IS NULL;
CREATE INDEX batches_closing ON batches (id)
    WHERE finalizing_at IS NULL AND (cancelling_at IS NOT NULL OR expiring_at IS NOT NULL);
CREATE INDEX batches_finalizing ON batches (finalizing_at)
    WHERE finalizing_at IS NOT NULL AND ended_at IS NULL;

-- [0, next) is claimed or finished; [next, total) is pending and has no row anywhere.
CREATE TABLE lanes (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id  uuid NOT NULL REFERENCES batches ON DELETE CASCADE,
    tenant    text NOT NULL,
    key       text NOT NULL,
    deadline  timestamptz NOT NULL,
    file_no   bigint NOT NULL,
    lane_no   integer NOT NULL,
    model     text NOT NULL,
    url       text NOT NULL,
    next      integer NOT NULL DEFAULT 0,
    total     integer NOT NULL,
    open      boolean NOT NULL DEFAULT true,
    -- next = total, as a separate column: an index predicate on `next` would prevent HOT updates of it.
    drained   boolean NOT NULL DEFAULT false,
    CHECK (next BETWEEN 0 AND total)
) WITH ({HOT});
CREATE INDEX lanes_claim ON lanes (key, tenant, deadline, id) WHERE open AND NOT drained;
CREATE INDEX lanes_batch ON lanes (batch_id);

-- Claimed, unfinished ordinals. Held while worker_id is set, else free from available_at on.
CREATE TABLE spans (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane_id       bigint NOT NULL,
    batch_id      uuid NOT NULL,
    outstanding   int4multirange NOT NULL CHECK (NOT isempty(outstanding)),
    worker_id     uuid,
    available_at  timestamptz NOT NULL DEFAULT now(),
    attempt       integer NOT NULL DEFAULT 1,
    upstream      text,
    task_id       text
) WITH ({HOT});
CREATE INDEX spans_due ON spans (available_at, id) WHERE worker_id IS NULL;
CREATE INDEX spans_held ON spans (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX spans_batch ON spans (batch_id);
CREATE UNIQUE INDEX spans_task ON spans (upstream, task_id) WHERE task_id IS NOT NULL;

-- The one outcome of one item. Keyed by line number, not by ordinal, so that merging the index scans of the
-- lanes returns the output in input order, without a sort.
CREATE TABLE results (
    lane_id        bigint NOT NULL,
    line_no        integer NOT NULL,
    ordinal        integer NOT NULL,
    outcome        outcome NOT NULL,
    status_code    smallint,
    attempt        smallint NOT NULL,
    input_tokens   integer NOT NULL,
    output_tokens  integer NOT NULL,
    finished_at    timestamptz NOT NULL DEFAULT now(),
    output         text NOT NULL,
    PRIMARY KEY (lane_id, line_no)
);

-- Append-only: every failed attempt, and when the next one may start.
CREATE TABLE retry_attempts (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id    uuid NOT NULL,
    lane_id     bigint NOT NULL,
    ordinal     integer NOT NULL,
    attempt     integer NOT NULL,
    error_code  text NOT NULL,
    message     text NOT NULL,
    not_before  timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX retry_attempts_item ON retry_attempts (lane_id, ordinal, attempt);

CREATE TABLE workers (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    lease_until  timestamptz NOT NULL
) WITH ({HOT});

CREATE TABLE duties (
    name    text PRIMARY KEY,
    due_at  timestamptz NOT NULL DEFAULT now(),
    ran_at  timestamptz
) WITH ({HOT});
INSERT INTO duties (name) VALUES ('sweep'), ('orphans');

-- Events for webhooks, written in the transaction that causes them.
CREATE TABLE outbox (
    id            uuid PRIMARY KEY,
    batch_id      uuid NOT NULL,
    type          text NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    available_at  timestamptz NOT NULL DEFAULT now(),
    delivered_at  timestamptz
);
CREATE INDEX outbox_due ON outbox (available_at) WHERE delivered_at IS NULL;
"""

FUNCTIONS = """
CREATE FUNCTION span_size(ordinals int4multirange) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN (SELECT coalesce(sum(upper(r) - lower(r)), 0)::integer FROM unnest(ordinals) AS r);

-- The first `n` ordinals.
CREATE FUNCTION span_head(ordinals int4multirange, n integer) RETURNS int4multirange
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN (
    SELECT coalesce(range_agg(int4range(lower(r), least(upper(r), lower(r) + n - before::integer))), '{}')
    FROM (
        SELECT r, sum(upper(r) - lower(r)) OVER (ORDER BY r) - (upper(r) - lower(r)) AS before
        FROM unnest(ordinals) AS r
    ) AS ranges
    WHERE before < n
);
"""

# Every item of every batch with its state, for people and for the API. Queries read one batch at a time.
REQUESTS = """
CREATE VIEW requests AS
SELECT
    b.id AS batch_id,
    n.id AS lane_id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    n.model,
    CASE
        WHEN r.outcome IS NOT NULL THEN r.outcome::text
        -- Only for items that cannot get an outcome any more. Items that were claimed before the batch was
        -- closed may still finish until it is frozen.
        WHEN b.cancelling_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= n.next)
            THEN 'canceled'
        WHEN b.expiring_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= n.next)
            THEN 'expired'
        WHEN s.task_id IS NOT NULL THEN 'processing'
        WHEN s.worker_id IS NOT NULL THEN 'claimed'
        WHEN s.available_at > now() THEN 'retrying'
        ELSE 'pending'
    END AS state,
    coalesce(r.attempt, s.attempt, 1) AS attempt,
    s.worker_id,
    s.task_id,
    s.available_at AS not_before,
    r.status_code,
    r.finished_at
FROM batches AS b
JOIN lanes AS n ON n.batch_id = b.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
LEFT JOIN results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
LEFT JOIN LATERAL (
    SELECT * FROM spans
    WHERE spans.batch_id = b.id AND spans.lane_id = n.id AND spans.outstanding @> l.ordinal
    LIMIT 1
) AS s ON l.ordinal < n.next AND r.outcome IS NULL;
"""

# lz4 compresses long bodies several times faster than the default, but not every build of PostgreSQL has it.
COMPRESSION = """
DO $$
BEGIN
    ALTER TABLE lines ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE results ALTER COLUMN output SET COMPRESSION lz4;
EXCEPTION
    WHEN feature_not_supported THEN NULL;
END
$$
"""


def upgrade() -> None:
    for part in (TABLES, FUNCTIONS, REQUESTS, COMPRESSION):
        op.get_bind().exec_driver_sql(part)


def downgrade() -> None:
    op.get_bind().exec_driver_sql("""
        DROP VIEW requests;
        DROP FUNCTION span_head, span_size;
        DROP TABLE outbox, duties, workers, retry_attempts, results, spans, lanes, batches, lines,
                   file_lanes, files;
        DROP TYPE outcome;
    """)

"""Asynchronous providers: what is known of an interrupted submission, the task of each result, and a view.

`spans.submission` is NULL for lines that no provider can know. `interrupted`: a worker held them and was
lost, so they may have been submitted. `unknown`: they were submitted and the answer was lost.
"""

from alembic import op

from batchline.store.statements import function

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE spans ADD COLUMN submission text CHECK (submission IN ('interrupted', 'unknown'));
CREATE INDEX spans_submission ON spans (lane_id) WHERE submission IS NOT NULL AND worker_id IS NULL;
-- Free spans without a task: the status of a batch must not read every task.
CREATE INDEX spans_waiting ON spans (lane_id) WHERE worker_id IS NULL AND task_id IS NULL;
ALTER TABLE results ADD COLUMN task_id text;

-- Tasks of batches that have ended or were deleted, to be cancelled at their providers.
CREATE TABLE abandoned_tasks (
    upstream      text NOT NULL,
    task_id       text NOT NULL,
    batch_id      uuid NOT NULL,
    lane_id       bigint NOT NULL,
    url           text NOT NULL,
    model         text NOT NULL,
    settings      jsonb NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    available_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (upstream, task_id)
);
CREATE INDEX abandoned_tasks_due ON abandoned_tasks (available_at);
"""

# Each part reads each row once: a batch whose items all wait for a provider has a span for each of them.
PROVIDER_ITEMS = """
CREATE VIEW provider_items AS
SELECT
    n.batch_id,
    n.id AS lane_id,
    r.ordinal,
    r.line_no,
    l.custom_id,
    n.model,
    n.key AS upstream,
    CASE r.outcome WHEN 'completed' THEN 'succeeded' ELSE 'failed' END AS state,
    r.attempt::integer AS attempt,
    r.task_id AS provider_task_id,
    NULL::timestamptz AS not_before,
    r.finished_at
FROM batches AS b
JOIN lanes AS n ON n.batch_id = b.id
JOIN results AS r ON r.lane_id = n.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no AND l.ordinal = r.ordinal
WHERE b.purging_at IS NULL
UNION ALL
SELECT
    n.batch_id,
    n.id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    n.model,
    n.key,
    CASE
        WHEN s.task_id IS NOT NULL THEN 'processing'
        WHEN s.worker_id IS NOT NULL THEN 'submitting'
        WHEN s.submission = 'unknown' THEN 'submission_unknown'
        ELSE 'queued'
    END,
    s.attempt,
    s.task_id,
    s.available_at,
    NULL
FROM batches AS b
JOIN lanes AS n ON n.batch_id = b.id
JOIN spans AS s ON s.lane_id = n.id AND s.batch_id = b.id
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
JOIN lines AS l
    ON l.file_no = n.file_no
    AND l.lane_no = n.lane_no
    AND l.ordinal >= lower(piece)
    AND l.ordinal < upper(piece)
WHERE b.purging_at IS NULL
UNION ALL
SELECT
    n.batch_id,
    n.id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    n.model,
    n.key,
    CASE
        WHEN b.cancelling_at IS NOT NULL THEN 'canceled'
        WHEN b.expiring_at IS NOT NULL THEN 'expired'
        ELSE 'queued'
    END,
    1,
    NULL,
    NULL,
    NULL
FROM batches AS b
JOIN current_lanes AS n ON n.batch_id = b.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
WHERE b.purging_at IS NULL
  AND (
      l.ordinal >= n.next
      -- A frozen batch has no spans any more: what had no result then never gets one.
      OR (
          b.finalizing_at IS NOT NULL
          AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL)
          AND NOT EXISTS (SELECT FROM results AS r WHERE r.lane_id = n.id AND r.line_no = l.line_no)
      )
  )
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    functions = (function(name, schema) for name in ("task_room_v1", "claim_tasks_v1"))
    for part in (COLUMNS, PROVIDER_ITEMS, *functions):
        bind.exec_driver_sql(part)


def downgrade() -> None:
    op.get_bind().exec_driver_sql("""
        DROP VIEW provider_items;
        DROP TABLE abandoned_tasks;
        DROP FUNCTION claim_tasks_v1;
        DROP FUNCTION task_room_v1;
        ALTER TABLE results DROP COLUMN task_id;
        DROP INDEX spans_waiting;
        ALTER TABLE spans DROP COLUMN submission;
    """)

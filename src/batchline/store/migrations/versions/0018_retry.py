"""An ended batch can be opened again by a retry.

`earlier_files` are the files of its earlier ends. `left_out` counts the lines that an earlier end left
without a result and that the running retry has left out. `spans.attempts_before` are the attempts of lines
from before a retry has put them back: the maximum of attempts does not count them. `lost_submissions` keeps
what an ended batch knows of lines that a provider may have accepted, for a retry.
"""

from alembic import op

from batchline.store.statements import function

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# A settle that is under way would not know of the columns.
ALONE = "LOCK TABLE spans, batches, lanes IN ACCESS EXCLUSIVE MODE"

COLUMNS = """
ALTER TABLE batches
    ADD COLUMN earlier_files uuid[] NOT NULL DEFAULT '{}',
    ADD COLUMN left_out integer NOT NULL DEFAULT 0 CHECK (left_out >= 0),
    ADD COLUMN left_out_as text CHECK (left_out_as IN ('cancelled', 'expired')),
    ADD CONSTRAINT batches_left_out CHECK ((left_out > 0) = (left_out_as IS NOT NULL));
ALTER TABLE spans ADD COLUMN attempts_before integer NOT NULL DEFAULT 0;

CREATE TABLE lost_submissions (
    batch_id    uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    lane_id     bigint NOT NULL,
    -- As in `spans`.
    submission  text NOT NULL,
    ordinals    int4multirange NOT NULL,
    PRIMARY KEY (batch_id, lane_id, submission)
);
"""

CURRENT_BATCHES = """
CREATE OR REPLACE VIEW current_batches AS
SELECT
    b.id,
    b.tenant,
    b.file_id,
    b.endpoint,
    b.completion_window,
    b.settings,
    b.metadata,
    b.resume_key,
    b.total,
    coalesce(c.completed, b.completed) AS completed,
    coalesce(c.failed, b.failed) AS failed,
    coalesce(c.input_tokens, b.input_tokens) AS input_tokens,
    coalesce(c.cached_tokens, b.cached_tokens) AS cached_tokens,
    coalesce(c.output_tokens, b.output_tokens) AS output_tokens,
    coalesce(c.reasoning_tokens, b.reasoning_tokens) AS reasoning_tokens,
    b.created_at,
    b.in_progress_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.completed_at,
    b.cancelled_at,
    b.expired_at,
    b.failed_at,
    b.ended_at,
    b.finalizer,
    b.output_file_id,
    b.error_file_id,
    b.summary,
    b.purging_at,
    b.purged_at,
    b.errors,
    b.model,
    b.output_expires_after,
    b.planned_output_id,
    b.submitted_by,
    b.held_at,
    b.finalize_failures,
    b.finalize_after,
    b.finalize_error{more}
FROM batches AS b
LEFT JOIN LATERAL (
    -- The columns of 0012: the view would keep later ones from being dropped.
    SELECT batch_id, seq, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens
    FROM counters
    WHERE counters.batch_id = b.id
    ORDER BY counters.seq DESC
    LIMIT 1
) AS c ON true
"""
LEFT_OUT = ",\n    b.left_out,\n    b.left_out_as"

REQUESTS = """
CREATE OR REPLACE VIEW requests AS
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
            THEN 'expired'{more}
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
    r.finished_at,
    CASE WHEN s.worker_id IS NOT NULL THEN s.claimed_at END AS claimed_at
FROM batches AS b
JOIN current_lanes AS n ON n.batch_id = b.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
LEFT JOIN results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
LEFT JOIN LATERAL (
    -- The columns of 0013.
    SELECT id, lane_id, batch_id, outstanding, worker_id, available_at, attempt, upstream, task_id, claimed_at
    FROM spans
    WHERE spans.batch_id = b.id AND spans.lane_id = n.id AND spans.outstanding @> l.ordinal
    LIMIT 1
) AS s ON l.ordinal < n.next AND r.outcome IS NULL
WHERE b.purging_at IS NULL
"""
# The cursors have passed all lines, so one without a span was left out.
NO_SPAN = """
        WHEN b.left_out_as IS NOT NULL AND s.id IS NULL
            THEN CASE b.left_out_as WHEN 'cancelled' THEN 'canceled' ELSE 'expired' END"""

# Batches that leave lines out are closed again as they were, and a worker ends them: what was put back and
# has no result counts as never run. The files of earlier ends stay until somebody deletes them.
BACK = """
DELETE FROM spans AS s USING batches AS b WHERE b.left_out > 0 AND s.batch_id = b.id;
UPDATE lanes AS n SET open = false FROM batches AS b WHERE b.left_out > 0 AND n.batch_id = b.id;
UPDATE batches
SET cancelling_at = CASE left_out_as WHEN 'cancelled' THEN now() END,
    expiring_at = CASE left_out_as WHEN 'expired' THEN now() END
WHERE left_out > 0 AND cancelling_at IS NULL AND expiring_at IS NULL;
"""
DROP = """
DROP TABLE lost_submissions;
ALTER TABLE spans DROP COLUMN attempts_before;
ALTER TABLE batches DROP COLUMN earlier_files, DROP COLUMN left_out, DROP COLUMN left_out_as;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    for part in (
        ALONE,
        COLUMNS,
        CURRENT_BATCHES.format(more=LEFT_OUT),
        REQUESTS.format(more=NO_SPAN),
        function("failure_code_v1", schema),
    ):
        bind.exec_driver_sql(part)


def downgrade() -> None:
    bind = op.get_bind()
    # A view cannot lose a column by CREATE OR REPLACE.
    for part in (
        ALONE,
        BACK,
        REQUESTS.format(more=""),
        "DROP FUNCTION failure_code_v1",
        "DROP VIEW current_batches",
        DROP,
        CURRENT_BATCHES.format(more=""),
    ):
        bind.exec_driver_sql(part)

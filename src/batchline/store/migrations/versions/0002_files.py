"""Files for a server: validation errors, deletion in two steps, uploads in parts.

A deleted file is hidden at once (`deleted_at`). Its lines and its object are deleted later, in chunks, once
no running batch needs them (`purged_at`). Its row stays, to distinguish a deleted file from a lost one. The
results and attempts of ended batches are deleted in the same way (`purging_at`, `purged_at`).
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE files
    -- The first hundred reasons why no batch can run over it: [{code, message, param, line}]; NULL if valid.
    ADD COLUMN errors      jsonb,
    ADD COLUMN deleted_at  timestamptz,
    ADD COLUMN purged_at   timestamptz;
CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX files_deleted ON files (deleted_at, id) WHERE deleted_at IS NOT NULL AND purged_at IS NULL;
CREATE INDEX files_object ON files (object_key) WHERE object_key IS NOT NULL;

ALTER TABLE batches
    -- From this time on, results may be missing.
    ADD COLUMN purging_at  timestamptz,
    ADD COLUMN purged_at   timestamptz;
CREATE INDEX batches_kept ON batches (ended_at) WHERE ended_at IS NOT NULL AND purging_at IS NULL;
CREATE INDEX batches_purging ON batches (purging_at) WHERE purging_at IS NOT NULL AND purged_at IS NULL;
CREATE INDEX batches_output ON batches (output_file_id) WHERE output_file_id IS NOT NULL;
CREATE INDEX batches_errors ON batches (error_file_id) WHERE error_file_id IS NOT NULL;

CREATE TABLE uploads (
    id             uuid PRIMARY KEY,
    tenant         text NOT NULL,
    purpose        text NOT NULL,
    filename       text NOT NULL,
    mime_type      text NOT NULL,
    bytes          bigint NOT NULL CHECK (bytes >= 0),
    -- Seconds until the resulting file expires; NULL: the default.
    expires_after  integer,
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    completed_at   timestamptz,
    cancelled_at   timestamptz,
    file_id        uuid
);
CREATE INDEX uploads_expiring ON uploads (expires_at);

CREATE TABLE upload_parts (
    id          uuid PRIMARY KEY,
    upload_id   uuid NOT NULL REFERENCES uploads ON DELETE CASCADE,
    bytes       bigint NOT NULL,
    object_key  text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX upload_parts_upload ON upload_parts (upload_id);

INSERT INTO duties (name) VALUES ('retention'), ('uploads');
"""

# The same view, but without batches whose results are being purged: their items would look as if they had not
# run yet.
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
) AS s ON l.ordinal < n.next AND r.outcome IS NULL
"""
KNOWN = "WHERE b.purging_at IS NULL"

DOWN = """
DELETE FROM duties WHERE name IN ('retention', 'uploads');
DROP TABLE upload_parts, uploads;
-- The previous version supports neither deleted files nor batches without their results.
DELETE FROM batches WHERE purging_at IS NOT NULL;
DELETE FROM files AS f
WHERE deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.id AND b.ended_at IS NULL);
DROP INDEX batches_errors, batches_output;
ALTER TABLE batches DROP COLUMN purged_at, DROP COLUMN purging_at;
DROP INDEX files_object;
ALTER TABLE files DROP COLUMN purged_at, DROP COLUMN deleted_at, DROP COLUMN errors;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)
    op.get_bind().exec_driver_sql(REQUESTS + KNOWN)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(REQUESTS)
    op.get_bind().exec_driver_sql(DOWN)

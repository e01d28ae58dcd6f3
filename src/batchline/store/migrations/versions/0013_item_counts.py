"""Items are counted by state and say when they were claimed; batches without a deadline; deleted batches.

A span says when its worker claimed it. A batch without a completion window has no `expires_at`, and its lanes
have a deadline that is later than all others. Lanes that are deleted, by hand or with their batch, are noted
in `deleted_lanes` until maintenance has deleted their other rows.
"""

from alembic import op

from batchline.store.statements import function

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FUNCTIONS = ("unfinished_v1", "lanes_deleted_v1")

TABLES = """
ALTER TABLE spans ADD COLUMN claimed_at timestamptz;
ALTER TABLE batches ALTER COLUMN expires_at DROP NOT NULL;

CREATE TABLE deleted_lanes (
    lane_id     bigint PRIMARY KEY,
    batch_id    uuid NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deleted_lanes_batch ON deleted_lanes (batch_id);
"""

TRIGGER = """
CREATE TRIGGER lanes_deleted AFTER DELETE ON lanes
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION lanes_deleted_v1()
"""

# Batches that were deleted by hand before. One index probe for each lane that has rows.
DELETED_BEFORE = """
WITH RECURSIVE
result_lane AS (
    (SELECT lane_id FROM results ORDER BY lane_id LIMIT 1)
    UNION ALL
    SELECT following.lane_id
    FROM result_lane AS r
    CROSS JOIN LATERAL (
        SELECT lane_id FROM results WHERE lane_id > r.lane_id ORDER BY lane_id LIMIT 1
    ) AS following
),
attempt_lane AS (
    (SELECT lane_id FROM retry_attempts ORDER BY lane_id LIMIT 1)
    UNION ALL
    SELECT following.lane_id
    FROM attempt_lane AS a
    CROSS JOIN LATERAL (
        SELECT lane_id FROM retry_attempts WHERE lane_id > a.lane_id ORDER BY lane_id LIMIT 1
    ) AS following
),
found AS (
    SELECT lane_id, NULL::uuid AS batch_id FROM result_lane
    UNION ALL
    SELECT lane_id, NULL FROM attempt_lane
    UNION ALL
    SELECT lane_id, NULL FROM cursors
    UNION ALL
    SELECT lane_id, batch_id FROM spans
)
INSERT INTO deleted_lanes (lane_id, batch_id)
SELECT lane_id, coalesce((array_agg(batch_id) FILTER (WHERE batch_id IS NOT NULL))[1], gen_random_uuid())
FROM found
WHERE NOT EXISTS (SELECT FROM lanes AS n WHERE n.id = found.lane_id)
GROUP BY lane_id;
DELETE FROM counters AS c WHERE NOT EXISTS (SELECT FROM batches AS b WHERE b.id = c.batch_id);
"""

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
    r.finished_at{more}
FROM batches AS b
JOIN current_lanes AS n ON n.batch_id = b.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
LEFT JOIN results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
LEFT JOIN LATERAL (
    SELECT * FROM spans
    WHERE spans.batch_id = b.id AND spans.lane_id = n.id AND spans.outstanding @> l.ordinal
    LIMIT 1
) AS s ON l.ordinal < n.next AND r.outcome IS NULL
WHERE b.purging_at IS NULL
"""

CLAIMED_AT = ",\n    CASE WHEN s.worker_id IS NOT NULL THEN s.claimed_at END AS claimed_at"

# A batch without a deadline gets one that is far away. What maintenance has not deleted yet stays, as before.
BACK = """
DROP TRIGGER lanes_deleted ON lanes;
DROP TABLE deleted_lanes;
UPDATE batches SET expires_at = '9999-12-31 00:00:00+00' WHERE expires_at IS NULL;
ALTER TABLE batches ALTER COLUMN expires_at SET NOT NULL;
ALTER TABLE spans DROP COLUMN claimed_at;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(TABLES)
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))
    for part in (TRIGGER, DELETED_BEFORE, REQUESTS.format(more=CLAIMED_AT)):
        bind.exec_driver_sql(part)


def downgrade() -> None:
    bind = op.get_bind()
    for part in ("DROP VIEW requests", BACK, REQUESTS.format(more="")):
        bind.exec_driver_sql(part)
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")

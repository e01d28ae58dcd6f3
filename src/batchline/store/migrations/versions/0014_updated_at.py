"""When a governed batch last changed, and indexes for lists by status.

Whatever changes a governed batch changes its row in batches or operation_batches, or appends its counters. So
`updated_at` is the newest of three times. Each is taken from the clock while the batch's row is locked, so it
never goes back. Triggers take the first two: no statement can forget it, and other batches do not pay for it.

The indexes end in created_at. It is now the same in both tables, because lists without a status are ordered
by the one in operation_batches.
"""

from alembic import op

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None

COLUMNS = """
UPDATE batches AS b
SET created_at = o.created_at
FROM operation_batches AS o
WHERE o.batch_id = b.id AND b.created_at <> o.created_at;

ALTER TABLE counters ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp();
-- NULL for other batches, and until the first change.
ALTER TABLE batches ADD COLUMN updated_at timestamptz;
ALTER TABLE operation_batches ADD COLUMN updated_at timestamptz;
UPDATE operation_batches AS o
SET updated_at = greatest(
        o.created_at, o.decided_at, o.released_at, o.retried_at,
        b.paused_at, b.cancelling_at, b.expiring_at, b.finalizing_at, b.ended_at, b.purging_at
    )
FROM batches AS b
WHERE b.id = o.batch_id;
ALTER TABLE operation_batches
    ALTER COLUMN updated_at SET DEFAULT clock_timestamp(),
    ALTER COLUMN updated_at SET NOT NULL;

CREATE FUNCTION stamp_update() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END
$$;
-- Of what users see. Who finalizes a batch is not a change of it.
CREATE TRIGGER batches_updated BEFORE UPDATE OF
    total, expires_at, paused_at, held_at, cancelling_at, expiring_at, finalizing_at,
    completed_at, cancelled_at, expired_at, failed_at, purging_at
    ON batches FOR EACH ROW WHEN (NEW.submitted_by IS NOT NULL) EXECUTE FUNCTION stamp_update();
CREATE TRIGGER operation_batches_updated BEFORE UPDATE
    ON operation_batches FOR EACH ROW EXECUTE FUNCTION stamp_update();
"""

LISTS = """
-- The status of a governed batch as its row in `batches` has it. A pending approval counts as IN_PROGRESS.
CREATE FUNCTION governed_status(finalizing_at timestamptz, completed integer, failed integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN finalizing_at IS NULL THEN 'IN_PROGRESS'
    WHEN completed + failed = 0 THEN 'CANCELLED'
    WHEN failed = 0 THEN 'COMPLETED'
    WHEN completed = 0 THEN 'FAILED'
    ELSE 'PARTIAL_SUCCESS'
END;
CREATE INDEX batches_status ON batches
    (tenant, governed_status(finalizing_at, completed, failed), created_at, id)
    WHERE submitted_by IS NOT NULL;
CREATE INDEX batches_user_status ON batches
    (tenant, submitted_by, governed_status(finalizing_at, completed, failed), created_at, id)
    WHERE submitted_by IS NOT NULL;

-- For children by status. Results that did not fail are not in it.
CREATE INDEX results_failed ON results (lane_id, line_no) WHERE outcome = 'failed';
"""

BACK = """
DROP INDEX results_failed, batches_user_status, batches_status;
DROP FUNCTION governed_status;
DROP VIEW governed_batches;
DROP TRIGGER operation_batches_updated ON operation_batches;
DROP TRIGGER batches_updated ON batches;
DROP FUNCTION stamp_update;
ALTER TABLE operation_batches DROP COLUMN updated_at;
ALTER TABLE batches DROP COLUMN updated_at;
ALTER TABLE counters DROP COLUMN updated_at;
"""

NEWEST = "(SELECT c.{name} FROM counters AS c WHERE c.batch_id = b.id ORDER BY c.seq DESC LIMIT 1)"
COUNTED = f"""CASE
        WHEN b.finalizing_at IS NULL THEN coalesce({NEWEST}, b.{{name}})
        ELSE b.{{name}}
    END AS {{name}}"""
GOVERNED = f"""
CREATE OR REPLACE VIEW governed_batches AS
SELECT
    o.batch_id AS id,
    o.tenant,
    o.user_id,
    o.operation,
    o.request_id,
    o.reason,
    o.approval,
    o.decided_by,
    o.decided_at,
    o.decision_reason,
    o.held,
    o.released_at,
    o.retries,
    o.retried_at,
    b.total,
    {COUNTED.format(name="completed")},
    {COUNTED.format(name="failed")},
    o.created_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.ended_at,
    b.purging_at{{more}}
FROM batches AS b
JOIN operation_batches AS o ON o.batch_id = b.id
"""
UPDATED = f",\n    greatest(o.updated_at, b.updated_at, {NEWEST.format(name='updated_at')}) AS updated_at"


def upgrade() -> None:
    for part in (
        COLUMNS,
        LISTS,
        GOVERNED.format(more=UPDATED),
        "UPDATE schema_compatibility SET compatible_from = '0014'",
    ):
        op.get_bind().exec_driver_sql(part)


def downgrade() -> None:
    for part in (BACK, GOVERNED.format(more=""), "UPDATE schema_compatibility SET compatible_from = '0012'"):
        op.get_bind().exec_driver_sql(part)

"""Governed operations in the long run: separate routing keys, totals, a view, and retention.

The lanes of operations are routed by their URL. The bare name of the operation looked like a model's, so a
worker without operations could not exclude them.

A batch adds to the totals of its operation in the commit that ends it. So a query of the totals reads these
rows and the few batches that have not ended, not all batches.

One view returns a governed batch with its decision. The children of batches that ended long ago are deleted.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ROUTING = """
UPDATE lanes SET key = url WHERE starts_with(url, '/operations/') AND key <> url;
"""

ROUTING_BACK = """
UPDATE lanes SET key = model WHERE starts_with(url, '/operations/');
"""


TOTALS = """
ALTER TABLE operation_batches
    -- When it last added to the totals; NULL if it has not, or was reopened since.
    ADD COLUMN counted_at         timestamptz,
    -- What it has added; failed children include those that were retried since.
    ADD COLUMN counted_succeeded  integer NOT NULL DEFAULT 0,
    ADD COLUMN counted_failed     integer NOT NULL DEFAULT 0;

CREATE TABLE operation_totals (
    operation  text PRIMARY KEY,
    succeeded  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    -- Ended batches, and the sum of the seconds until their first end.
    batches    bigint NOT NULL,
    seconds    double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE operation_durations (
    operation  text NOT NULL,
    -- Upper bound in seconds; the batches took longer than the next smaller bound.
    bound      double precision NOT NULL,
    batches    bigint NOT NULL,
    PRIMARY KEY (operation, bound)
) WITH (fillfactor = 50);

UPDATE operation_batches AS o
SET counted_at = now(),
    counted_succeeded = b.completed,
    counted_failed = b.failed + o.retried_children,
    first_took = coalesce(o.first_took, b.finalizing_at - b.created_at)
FROM batches AS b
WHERE b.id = o.batch_id AND b.ended_at IS NOT NULL;

-- A batch that a retry has reopened had its first end, but has added nothing yet.
INSERT INTO operation_totals (operation, succeeded, failed, cancelled, batches, seconds)
SELECT
    o.operation,
    sum(o.counted_succeeded),
    sum(o.counted_failed),
    sum(CASE WHEN o.counted_at IS NULL THEN 0 ELSE b.total - b.completed - b.failed END),
    count(o.first_took),
    coalesce(extract(epoch FROM sum(o.first_took)), 0)
FROM operation_batches AS o
JOIN batches AS b ON b.id = o.batch_id
GROUP BY o.operation;

INSERT INTO operation_durations (operation, bound, batches)
SELECT took.operation, took.bound, count(*)
FROM (
    SELECT
        o.operation,
        coalesce(
            (
                SELECT min(bound)
                FROM unnest('{1, 5, 15, 60, 300, 900, 3600, 14400, 86400}'::float8[]) AS bound
                WHERE extract(epoch FROM o.first_took) <= bound
            ),
            'infinity'
        ) AS bound
    FROM operation_batches AS o
    WHERE o.first_took IS NOT NULL
) AS took
GROUP BY took.operation, took.bound;

CREATE INDEX operation_batches_uncounted ON operation_batches (operation) WHERE counted_at IS NULL;
"""

TOTALS_BACK = """
DROP TABLE operation_durations, operation_totals;
DROP INDEX operation_batches_uncounted;
ALTER TABLE operation_batches
    DROP COLUMN counted_failed,
    DROP COLUMN counted_succeeded,
    DROP COLUMN counted_at;
"""


GOVERNED = """
-- Governed batches with their decisions. tenant and created_at come from operation_batches, so its indexes
-- are used.
CREATE VIEW governed_batches AS
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
    b.completed,
    b.failed,
    o.created_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.ended_at,
    b.purging_at
FROM batches AS b
JOIN operation_batches AS o ON o.batch_id = b.id;

-- Governed batches have a longer retention than others.
CREATE INDEX batches_governed_kept ON batches (ended_at)
    WHERE submitted_by IS NOT NULL AND ended_at IS NOT NULL AND purging_at IS NULL;
"""

GOVERNED_BACK = """
DROP INDEX batches_governed_kept;
DROP VIEW governed_batches;
"""


def upgrade() -> None:
    for part in (ROUTING, TOTALS, GOVERNED):
        op.get_bind().exec_driver_sql(part)


def downgrade() -> None:
    for part in (GOVERNED_BACK, TOTALS_BACK, ROUTING_BACK):
        op.get_bind().exec_driver_sql(part)

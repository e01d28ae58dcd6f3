"""Governed operations over years: routing keys of their own, totals without a look at the past, retention.

The lanes of operations are routed by their URL. By the bare name of the operation they looked like a model's,
and a worker without operations could not leave them alone.

A batch that ends adds to the totals of its operation what it has not added before, in the commit that ends
it. So whoever asks for them reads these and the few batches that have not ended, not all that ever were.

One view says what a governed batch is to those who read it. The children of those that ended long ago go.
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
    -- When it last added to the totals; NULL: it has not, or was opened again since.
    ADD COLUMN counted_at         timestamptz,
    -- What it has added; of failed children also those that were put back since.
    ADD COLUMN counted_succeeded  integer NOT NULL DEFAULT 0,
    ADD COLUMN counted_failed     integer NOT NULL DEFAULT 0;

CREATE TABLE operation_totals (
    operation  text PRIMARY KEY,
    succeeded  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    -- Batches that have ended, and the seconds that they took to their first end.
    batches    bigint NOT NULL,
    seconds    double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE operation_durations (
    operation  text NOT NULL,
    -- They took no longer than this, but longer than the next smaller one.
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

-- One that a retry has opened again has had its first end, and has added nothing yet.
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
-- A governed batch as its user knows it: the batch, and what was decided about it. Found by the indexes of
-- operation_batches, whose tenant and number these are.
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

-- What governed batches leave behind is kept longer than what others do.
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

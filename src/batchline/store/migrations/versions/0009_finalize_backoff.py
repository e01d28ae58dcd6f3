"""Back-off per batch for failed finalizing, so that one batch does not delay the others.

The index serves a claim that goes from tenant to tenant and takes the batch that has waited longest.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE batches
    -- Failures since finalizing began. All three columns are cleared when the batch ends.
    ADD COLUMN finalize_failures integer NOT NULL DEFAULT 0,
    -- Earliest time of the next try.
    ADD COLUMN finalize_after timestamptz,
    -- Why the last try failed. Only for operators: it may contain paths that tenants must not see.
    ADD COLUMN finalize_error text;
DROP INDEX batches_finalizing;
CREATE INDEX batches_finalizing ON batches (tenant, (coalesce(finalize_after, finalizing_at)))
    WHERE finalizing_at IS NOT NULL AND ended_at IS NULL;
"""

DOWN = """
DROP INDEX batches_finalizing;
CREATE INDEX batches_finalizing ON batches (finalizing_at)
    WHERE finalizing_at IS NOT NULL AND ended_at IS NULL;
ALTER TABLE batches
    DROP COLUMN finalize_failures,
    DROP COLUMN finalize_after,
    DROP COLUMN finalize_error;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

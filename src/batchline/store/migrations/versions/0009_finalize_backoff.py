"""A failed finalization has a back-off of its own, so that it holds up no other batch.

The index serves a claim that goes from tenant to tenant, and takes of each what has waited longest.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE batches
    -- Since it began to be finalized; all three are cleared when it ends.
    ADD COLUMN finalize_failures integer NOT NULL DEFAULT 0,
    -- Not to be tried before.
    ADD COLUMN finalize_after timestamptz,
    -- Why the last try failed. For operators: it may name places that tenants need not know.
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

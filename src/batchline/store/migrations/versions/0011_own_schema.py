"""Record which programs may use the schema, and rename the table of maintenance tasks.

All tables are in a separate schema. `batchline.store.relocation` moves those of version 0.1.0 before this
migration runs.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE duties RENAME TO maintenance_tasks;
ALTER INDEX duties_pkey RENAME TO maintenance_tasks_pkey;

-- One row. A program whose newest known version is at least `compatible_from` may use the schema, even if the
-- schema is newer. A migration that older programs cannot work with sets it to its own version.
CREATE TABLE schema_compatibility (
    compatible_from  text NOT NULL
);
CREATE UNIQUE INDEX schema_compatibility_one_row ON schema_compatibility ((true));
INSERT INTO schema_compatibility VALUES ('0011');
"""

DOWN = """
DROP TABLE schema_compatibility;
ALTER INDEX maintenance_tasks_pkey RENAME TO duties_pkey;
ALTER TABLE maintenance_tasks RENAME TO duties;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

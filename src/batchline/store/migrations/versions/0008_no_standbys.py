"""Drop the table of idle workers: creating a batch no longer claims lines."""

from importlib import import_module

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("DROP TABLE standbys")


def downgrade() -> None:
    before = import_module("batchline.store.migrations.versions.0007_standbys")
    op.get_bind().exec_driver_sql(before.STANDBYS)

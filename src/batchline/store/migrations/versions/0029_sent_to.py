"""Spans know which upstream may have worked on their lines, and how often one crashed that had them.

Programs of 0028 go on with their functions. They know of neither, and drop both where they split a span.
"""

from alembic import op

from batchline.store.statements import function

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# In the order in which they use each other.
ADDED = (
    *("returned_lanes_v2", "waiting_lanes_v2", "tenant_shares_v2"),
    *("claim_fresh_v2", "claim_returned_v2", "claim_tasks_v2", "claim_v2", "claim_new_v2"),
    *("conclude_now_v2", "conclude_v2", "record_verdicts_v2", "settle_v2"),
)


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(
        "ALTER TABLE spans ADD COLUMN sent_to text, ADD COLUMN newly_marked boolean NOT NULL DEFAULT false,"
        " ADD COLUMN crashes smallint NOT NULL DEFAULT 0"
    )
    for name in ADDED:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(ADDED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    bind.exec_driver_sql(
        "ALTER TABLE spans DROP COLUMN sent_to, DROP COLUMN newly_marked, DROP COLUMN crashes"
    )

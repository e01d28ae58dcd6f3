"""What each busy worker has in flight and how fast it finishes lines, for the demand of workers.

A table of its own, because claims read every version of a row of `workers`.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE worker_reports (
    worker_id    uuid PRIMARY KEY REFERENCES workers (id) ON DELETE CASCADE,
    -- [{key, model, in_flight, rate, limited, unreachable}]
    loads        jsonb NOT NULL,
    -- Of Batchline.
    version      text NOT NULL,
    reported_at  timestamptz NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
"""

DOWN = "DROP TABLE worker_reports"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

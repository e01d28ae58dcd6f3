"""Budgets of requests and tokens per minute, which all workers share.

Programs of 0029 know nothing of them, and send as fast as their upstreams allow.
"""

from alembic import op

from batchline.store.statements import function

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

FUNCTION = "lease_rates_v1"

UP = """
-- Budgets that were used within a day. A row is what lease_rates locks; it never changes.
CREATE TABLE rate_budgets (
    -- Made of what it is a budget of: all workers with the same settings have the same id.
    id    uuid PRIMARY KEY,
    -- For people. It names no tenant.
    name  text NOT NULL
);
-- Up to when the rate of each is given away. The newest row of a budget counts: the one with the largest
-- `seq`. It is appended and not updated, as counters are.
CREATE TABLE rate_budget_states (
    budget_id    uuid NOT NULL,
    seq          bigint GENERATED ALWAYS AS IDENTITY,
    -- The time of the call: it tells whether the clock was set back.
    given_at     timestamptz NOT NULL,
    given_until  timestamptz NOT NULL
) WITH (
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX rate_budget_states_newest ON rate_budget_states (budget_id, seq DESC);
"""

DOWN = "DROP TABLE rate_budget_states, rate_budgets"


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(UP)
    bind.exec_driver_sql(function(FUNCTION, schema))


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(f"DROP FUNCTION {FUNCTION}")
    bind.exec_driver_sql(DOWN)

"""What a batch has cost, how much of its cap is reserved, and which rule has paused it.

`batches.paused_by` replaces `failure_pauses.rule`: a batch is paused because of its failures, by a cap, or
for a sample, and one column says which.
"""

from alembic import op

from batchline.store.statements import function

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

FUNCTIONS = ("reserve_budget_v1", "draw_sample_v1")

UP = """
-- Nano-dollars.
ALTER TABLE batches ADD COLUMN cost bigint NOT NULL DEFAULT 0, ADD COLUMN paused_by text;
ALTER TABLE counters ADD COLUMN cost bigint NOT NULL DEFAULT 0;
UPDATE batches AS b
SET paused_by = p.rule
FROM failure_pauses AS p
WHERE p.batch_id = b.id AND b.paused_at IS NOT NULL;
ALTER TABLE failure_pauses DROP COLUMN rule;

-- What each worker of a batch with a cap has reserved. The newest row of a holder counts: the one with the
-- largest `seq`. It is appended and not updated, as counters are.
CREATE TABLE budget_holds (
    batch_id   uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    holder     uuid NOT NULL,
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    -- The name under which the holder works.
    worker_id  uuid NOT NULL,
    -- It has requests in flight. What it holds beyond them may have been charged, and nobody knows.
    busy       boolean NOT NULL,
    cost       bigint NOT NULL,
    tokens     bigint NOT NULL
) WITH (
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX budget_holds_newest ON budget_holds (batch_id, holder, seq DESC);
"""

DOWN = """
DROP TABLE budget_holds;
-- A pause for another reason is a user's to the version before.
ALTER TABLE failure_pauses ADD COLUMN rule text CHECK (rule IN ('max_failed', 'alike'));
UPDATE failure_pauses AS p
SET rule = b.paused_by
FROM batches AS b
WHERE b.id = p.batch_id AND b.paused_at IS NOT NULL AND b.paused_by IN ('max_failed', 'alike');
ALTER TABLE counters DROP COLUMN cost;
ALTER TABLE batches DROP COLUMN cost, DROP COLUMN paused_by;
"""

# The view is taken as it is: what other migrations have added to it stays.
VIEW = "SELECT pg_get_viewdef('current_batches'::regclass)"
COLUMNS, END = ",\n    COALESCE(c.cost, b.cost) AS cost,\n    b.paused_by", "\n   FROM "
COUNTED, COUNTERS = "SELECT counters.cost, ", "SELECT "


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(UP)
    columns, end, rest = bind.exec_driver_sql(VIEW).scalar_one().partition(END)
    rest = rest.replace(COUNTERS, COUNTED, 1)
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW current_batches AS {columns}{COLUMNS}{end}{rest}")
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    # PostgreSQL writes the columns in its own way.
    view = bind.exec_driver_sql(VIEW).scalar_one()
    for written in (
        ",\n    COALESCE(c.cost, b.cost) AS cost,\n    b.paused_by",
        "counters.cost,\n            ",
    ):
        assert written in view
        view = view.replace(written, "", 1)
    bind.exec_driver_sql("DROP VIEW current_batches")
    bind.exec_driver_sql(f"CREATE VIEW current_batches AS {view}")
    bind.exec_driver_sql(DOWN)

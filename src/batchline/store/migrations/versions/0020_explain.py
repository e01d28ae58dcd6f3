"""Why items fail: causes and their counts, the times of each attempt, and pauses because of failures.

A batch lists its causes in `failure_causes`. Their counts are appended to `cause_counts` while it runs, and
go back to `failure_causes` when it is frozen, as the counters of a batch do. Failures from before this
revision have no cause.
"""

from alembic import op

from batchline.store.statements import function

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

FUNCTIONS = ("count_causes_v1", "pause_after_failures_v1", "note_failures_v1")

APPENDED = """
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
"""

UP = f"""
ALTER TABLE results
    ADD COLUMN cause text,
    ADD COLUMN held_seconds real,
    ADD COLUMN upstream_seconds real,
    ADD COLUMN settling_seconds real;
ALTER TABLE retry_attempts
    ADD COLUMN cause text,
    ADD COLUMN held_seconds real,
    ADD COLUMN upstream_seconds real,
    ADD COLUMN settling_seconds real;

-- At most 100 of a batch.
CREATE TABLE failure_causes (
    batch_id         uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    key              text NOT NULL,
    code             text NOT NULL,
    message          text NOT NULL,
    -- Items that have failed; while the batch runs, see cause_counts.
    failed           integer NOT NULL DEFAULT 0,
    -- Of these, what had failed when the batch was last continued.
    failed_before    integer NOT NULL DEFAULT 0,
    example_lane     bigint NOT NULL,
    example_ordinal  integer NOT NULL,
    PRIMARY KEY (batch_id, key)
);

-- The newest counts: the one with the largest `seq`.
CREATE TABLE cause_counts (
    batch_id  uuid NOT NULL,
    key       text NOT NULL,
    seq       bigint GENERATED ALWAYS AS IDENTITY,
    failed    integer NOT NULL,
    PRIMARY KEY (batch_id, key, seq)
) WITH ({APPENDED});

-- Of batches that were paused because of their failures, or continued.
CREATE TABLE failure_pauses (
    batch_id          uuid PRIMARY KEY REFERENCES batches (id) ON DELETE CASCADE,
    -- Why the batch is paused now; NULL: not because of its failures.
    rule              text CHECK (rule IN ('max_failed', 'alike')),
    threshold         integer,
    -- What had failed and completed when the batch was last continued.
    failed_before     integer NOT NULL DEFAULT 0,
    completed_before  integer NOT NULL DEFAULT 0,
    -- The code of all failures since then; `several`. NULL: none has failed, or the batch has no such rule.
    only_code         text
);

CREATE VIEW current_failure_causes AS
SELECT
    f.batch_id,
    f.key,
    f.code,
    f.message,
    coalesce(
        (
            SELECT c.failed
            FROM cause_counts AS c
            WHERE c.batch_id = f.batch_id AND c.key = f.key
            ORDER BY c.seq DESC
            LIMIT 1
        ),
        f.failed
    ) AS failed,
    f.failed_before,
    f.example_lane,
    f.example_ordinal
FROM failure_causes AS f;
"""

DOWN = """
DROP VIEW current_failure_causes;
DROP TABLE failure_pauses, cause_counts, failure_causes;
ALTER TABLE retry_attempts
    DROP COLUMN cause, DROP COLUMN held_seconds, DROP COLUMN upstream_seconds, DROP COLUMN settling_seconds;
ALTER TABLE results
    DROP COLUMN cause, DROP COLUMN held_seconds, DROP COLUMN upstream_seconds, DROP COLUMN settling_seconds;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(UP)
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    bind.exec_driver_sql(DOWN)

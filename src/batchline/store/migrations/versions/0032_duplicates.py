"""Batches in which identical requests run once, and batches that run in the order of their prompts.

Both put all lines of a new batch into spans (arrange_lines). Duplicates are held back as the lines of a later
step are, so the version before sends them when it begins that step.
"""

from alembic import op

from batchline.store.statements import function

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# In the order in which they use each other.
ADDED = (
    *("prompt_key_v1", "arrange_lines_v1", "copied_line_v1", "count_copied_failures_v1"),
    *("answer_duplicates_v1", "begin_step_v2", "unfinished_v2"),
)

TABLES = """
-- Lines that got the answer of an identical line.
ALTER TABLE batches ADD COLUMN duplicates integer NOT NULL DEFAULT 0;
-- Lines of a batch that are not sent, because others are identical. Up to 2,000 share a row.
CREATE TABLE duplicates (
    batch_id  uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    lane_id   bigint NOT NULL,
    -- The lowest of the ordinals.
    first     integer NOT NULL,
    ordinals  integer[] NOT NULL,
    line_nos  integer[] NOT NULL,
    -- The number of the line whose answer each of them gets.
    leaders   integer[] NOT NULL,
    PRIMARY KEY (lane_id, first)
);
CREATE INDEX duplicates_batch ON duplicates (batch_id);
"""
# The views are taken as they are: what other migrations have added to them stays.
VIEW = "SELECT pg_get_viewdef('{}'::regclass)"
VIEWS = ("current_batches", "provider_items", "requests")
END = "\n   FROM "
COLUMN = ",\n    b.duplicates"


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(TABLES)
    columns, end, rest = bind.exec_driver_sql(VIEW.format("current_batches")).scalar_one().partition(END)
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW current_batches AS {columns}{COLUMN}{end}{rest}")
    for name in ADDED:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(ADDED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    views = {name: bind.exec_driver_sql(VIEW.format(name)).scalar_one() for name in VIEWS}
    bind.exec_driver_sql("DROP VIEW requests, provider_items, current_batches")
    assert COLUMN in views["current_batches"]
    for name, definition in views.items():
        bind.exec_driver_sql(f"CREATE VIEW {name} AS {definition.replace(COLUMN, '', 1)}")
    bind.exec_driver_sql("DROP TABLE duplicates")
    bind.exec_driver_sql("ALTER TABLE batches DROP COLUMN duplicates")

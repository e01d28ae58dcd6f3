"""The priority and the concurrency of a batch, and actions on all batches that match a filter.

A claim takes the lanes of a tenant by priority, then by deadline. So its index has the priority before the
deadline, and each lane has a copy of its batch's priority and concurrency.
"""

from alembic import op

from batchline.store.statements import function

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# Functions that have changed since 0021, created anew: a database of that version has the older ones. In the
# order in which they use each other.
CHANGED = (
    *("add_counts_v1", "unfinished_v1", "pause_after_failures_v1", "reserve_budget_v1", "draw_sample_v1"),
    *("record_verdicts_v1", "settle_v1"),
    *("returned_lanes_v1", "waiting_tenants_v1", "waiting_lanes_v1", "tenant_shares_v1"),
    *("claim_v1", "claim_new_v1"),
)

COLUMNS = """
ALTER TABLE batches
    ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    ADD COLUMN concurrency integer CHECK (concurrency > 0);
ALTER TABLE lanes
    ADD COLUMN priority smallint NOT NULL DEFAULT 0,
    ADD COLUMN concurrency integer;

DROP INDEX lanes_claim;
-- With the batch, so that a claim can leave some batches out without a look at their lanes.
CREATE INDEX lanes_claim ON lanes (key, tenant, priority DESC, deadline, id) INCLUDE (batch_id)
WHERE open AND NOT drained;
"""

ACTIONS = """
-- One action on all batches of a tenant that match a filter.
CREATE TABLE bulk_actions (
    id             uuid PRIMARY KEY,
    tenant         text NOT NULL,
    -- Who requested it, with the role that counted then.
    actor          text NOT NULL,
    role           text NOT NULL,
    -- The server had no keys.
    alone          boolean NOT NULL,
    action         text NOT NULL
        CHECK (action IN ('cancel', 'pause', 'resume', 'retry', 'delete', 'priority')),
    -- The new priority.
    value          smallint CHECK ((value IS NOT NULL) = (action = 'priority')),
    filter         jsonb NOT NULL,
    -- How many batches matched when it was requested.
    matching       integer NOT NULL,
    -- The last batch that was looked at: batches are taken from the newest to the oldest, so none is added.
    position_at    timestamptz NOT NULL DEFAULT now(),
    position_id    uuid NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    done           integer NOT NULL DEFAULT 0,
    failed_count   integer NOT NULL DEFAULT 0,
    -- The first hundred that were refused: [batch, reason].
    failed         jsonb NOT NULL DEFAULT '[]',
    -- Counts how often a worker has taken it. Only the last one may go on.
    turns          integer NOT NULL DEFAULT 0,
    -- When a worker may take it; in the future while one has it.
    due_at         timestamptz NOT NULL DEFAULT now(),
    created_at     timestamptz NOT NULL DEFAULT now(),
    cancelled_at   timestamptz,
    cancelled_by   text,
    -- Why it ended early.
    error          text,
    ended_at       timestamptz
);
CREATE INDEX bulk_actions_due ON bulk_actions (due_at) WHERE ended_at IS NULL;
CREATE INDEX bulk_actions_tenant ON bulk_actions (tenant, id);
-- None of a tenant that is being erased.
CREATE TRIGGER bulk_actions_tenant AFTER INSERT ON bulk_actions
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tenant_open_v1('');
"""
# Taken as it is, with one more table at its end.
TENANT_DATA = "SELECT rtrim(pg_get_viewdef('tenant_data'::regclass), ';')"
UNION = "UNION ALL"

# The views are taken as they are: what other migrations have added to them stays.
VIEW = "SELECT pg_get_viewdef('{name}'::regclass)"
ADDED = (
    ("current_lanes", "n", "\n   FROM lanes n"),
    ("current_batches", "b", "\n   FROM "),
)

DOWN = """
DROP TABLE bulk_actions;
DROP INDEX lanes_claim;
ALTER TABLE lanes DROP COLUMN priority, DROP COLUMN concurrency;
ALTER TABLE batches DROP COLUMN priority, DROP COLUMN concurrency;
CREATE INDEX lanes_claim ON lanes (key, tenant, deadline, id) WHERE open AND NOT drained;
"""


def _columns(of: str) -> str:
    return f",\n    {of}.priority,\n    {of}.concurrency"


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    # A claim that is under way would use the index that is replaced.
    bind.exec_driver_sql("LOCK TABLE batches, lanes IN ACCESS EXCLUSIVE MODE")
    bind.exec_driver_sql(COLUMNS)
    bind.exec_driver_sql(ACTIONS)
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(
        f"CREATE OR REPLACE VIEW tenant_data AS {data}"
        f" {UNION} SELECT 'bulk_actions', tenant FROM bulk_actions"
    )
    for name, of, end in ADDED:
        columns, end, rest = bind.exec_driver_sql(VIEW.format(name=name)).scalar_one().partition(end)
        bind.exec_driver_sql(f"CREATE OR REPLACE VIEW {name} AS {columns}{_columns(of)}{end}{rest}")
    for name in reversed(CHANGED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    for name in (*CHANGED, "matching_batches_v1"):
        bind.exec_driver_sql(function(name, schema))
    # Programs of 0021 call settle_v1 without the batches.
    bind.exec_driver_sql("UPDATE schema_compatibility SET compatible_from = '0026'")


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql("DROP FUNCTION matching_batches_v1")
    bind.exec_driver_sql("LOCK TABLE batches, lanes IN ACCESS EXCLUSIVE MODE")
    # Two views use `current_lanes`. A view cannot lose a column by CREATE OR REPLACE.
    views = {
        name: bind.exec_driver_sql(VIEW.format(name=name)).scalar_one()
        for name in ("current_lanes", "current_batches", "provider_items", "requests")
    }
    for name, of, _ in ADDED:
        # PostgreSQL leaves the table's name out where it is the only one.
        written = next(
            text for text in (_columns(of), _columns(of).replace(f"{of}.", "")) if text in views[name]
        )
        views[name] = views[name].replace(written, "", 1)
    bind.exec_driver_sql("DROP VIEW requests, provider_items, current_lanes, current_batches")
    for name, definition in views.items():
        bind.exec_driver_sql(f"CREATE VIEW {name} AS {definition}")
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW tenant_data AS {data.rpartition(UNION)[0]}")
    bind.exec_driver_sql(DOWN)
    bind.exec_driver_sql("UPDATE schema_compatibility SET compatible_from = '0014'")

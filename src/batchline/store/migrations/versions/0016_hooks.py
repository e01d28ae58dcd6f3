"""Completion hooks and their deliveries, and the repair of batches that were never frozen.

The database knows only the names of hooks. What a hook runs is in the settings of a worker.
"""

from alembic import op

from batchline.store.statements import function

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

UP = """
-- Hooks that a worker has, or had a short while ago. An event becomes one delivery for each.
CREATE TABLE hooks (
    name        text PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE hook_deliveries (
    -- Not a reference: `batchline run` has hooks that no worker has.
    hook           text NOT NULL,
    event_id       uuid NOT NULL,
    batch_id       uuid NOT NULL,
    type           text NOT NULL,
    -- When the event occurred.
    occurred_at    timestamptz NOT NULL,
    attempts       integer NOT NULL DEFAULT 0,
    available_at   timestamptz NOT NULL DEFAULT now(),
    -- The lease of the process that runs the hook; NULL: nobody does.
    running_until  timestamptz,
    delivered_at   timestamptz,
    -- Set when the delivery is abandoned.
    failed_at      timestamptz,
    last_error     text,
    last_output    text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hook, event_id)
) WITH (fillfactor = 80);
CREATE INDEX hook_deliveries_open ON hook_deliveries (hook, available_at)
    WHERE delivered_at IS NULL AND failed_at IS NULL;
CREATE INDEX hook_deliveries_batch ON hook_deliveries (batch_id);
CREATE INDEX hook_deliveries_newest ON hook_deliveries (created_at, event_id, hook);
CREATE INDEX outbox_batch ON outbox (batch_id);
CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

INSERT INTO maintenance_tasks (name) VALUES ('unfrozen');
"""

DOWN = """
DELETE FROM maintenance_tasks WHERE name = 'unfrozen';
DROP INDEX outbox_batch, outbox_delivered;
DROP TABLE hook_deliveries, hooks;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(UP)
    bind.exec_driver_sql(function("freeze_finished_v1", schema))


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql("DROP FUNCTION freeze_finished_v1")
    bind.exec_driver_sql(DOWN)

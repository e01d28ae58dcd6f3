"""Schedules of Python apps: when each is due, so that each of its times becomes one batch.

The database knows a schedule's name and times. What it submits is in the app.
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

SCHEDULES = """
CREATE TABLE schedules (
    tenant        text NOT NULL,
    name          text NOT NULL,
    -- The cron expression and its time zone. Only workers with the same definition run it.
    definition    text NOT NULL,
    -- The oldest time that has become no batch yet.
    due_at        timestamptz NOT NULL,
    -- When it may be taken: at due_at; after the lease while a worker runs it; after the delay if it failed.
    available_at  timestamptz NOT NULL,
    -- How often it was taken for due_at. With due_at, it is the fence.
    attempts      integer NOT NULL DEFAULT 0,
    last_error    text,
    -- The newest time that became a batch, or needed none. A batch that was deleted is still named.
    last_at       timestamptz,
    last_batch_id uuid,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 80);
-- None of a tenant that is being erased.
CREATE TRIGGER schedules_tenant AFTER INSERT ON schedules
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tenant_open_v1('');
"""
# Taken as it is, with one more table at its end.
TENANT_DATA = "SELECT rtrim(pg_get_viewdef('tenant_data'::regclass), ';')"
UNION = "UNION ALL"


def upgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(SCHEDULES)
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(
        f"CREATE OR REPLACE VIEW tenant_data AS {data} {UNION} SELECT 'schedules', tenant FROM schedules"
    )


def downgrade() -> None:
    bind = op.get_bind()
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW tenant_data AS {data.rpartition(UNION)[0]}")
    bind.exec_driver_sql("DROP TABLE schedules")

"""The dashboard: sessions of browsers, lists of batches by status, deadline and failures, and rates over
time.

Rates need history. Settles note it per batch, at most once per minute (note_progress): the alternatives
were a row per minute that all settles of a tenant change, where they would wait for each other, and
samples by the server, which miss what ran without one. docs/decisions/0022 has the reasons.
"""

from alembic import op

from batchline.store.statements import function

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

FUNCTIONS = ("batch_status_v1", "note_progress_v1")

STATUS = (
    "batch_status_v1(cancelled_at, expired_at, failed_at, completed_at, cancelling_at, finalizing_at,"
    " paused_at, held_at, in_progress_at)"
)

UP = f"""
-- Browsers that are signed in with a key. Of the cookie only the hash is stored.
CREATE TABLE browser_sessions (
    hash        bytea PRIMARY KEY,
    key_id      uuid NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL
);
CREATE INDEX browser_sessions_key ON browser_sessions (key_id, created_at);
CREATE INDEX browser_sessions_expired ON browser_sessions (expires_at);

-- How far batches were, over time. See note_progress.
CREATE TABLE progress (
    batch_id        uuid NOT NULL,
    at              timestamptz NOT NULL,
    began_at        timestamptz NOT NULL,
    tenant          text NOT NULL,
    -- Since the row before, or since the batch began.
    seconds         real NOT NULL,
    completed       integer NOT NULL,
    failed          integer NOT NULL,
    tokens          bigint NOT NULL,
    cost            bigint NOT NULL,
    more_completed  integer NOT NULL,
    more_failed     integer NOT NULL,
    more_tokens     bigint NOT NULL,
    more_cost       bigint NOT NULL,
    in_flight       integer NOT NULL,
    PRIMARY KEY (batch_id, at)
);
CREATE INDEX progress_newest ON progress (tenant, at);
-- For retention. Rows come in the order of their times.
CREATE INDEX progress_times ON progress USING brin (at);

CREATE INDEX batches_by_status ON batches (tenant, {STATUS}, created_at, id);
CREATE INDEX batches_by_deadline ON batches (tenant, (coalesce(expires_at, 'infinity')), id)
    WHERE ended_at IS NULL;
CREATE INDEX batches_by_failed ON batches (tenant, failed, id) WHERE failed > 0 AND finalizing_at IS NOT NULL;
CREATE INDEX batches_by_end ON batches (tenant, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX api_keys_of_tenant ON api_keys (tenant, id);
"""

# Taken as it is, with one more table at its end.
TENANT_DATA = "SELECT rtrim(pg_get_viewdef('tenant_data'::regclass), ';')"
UNION = "UNION ALL"

DOWN = """
DROP INDEX api_keys_of_tenant, batches_by_end, batches_by_failed, batches_by_deadline, batches_by_status;
DROP TABLE progress, browser_sessions;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))
    bind.exec_driver_sql(UP)
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(
        f"CREATE OR REPLACE VIEW tenant_data AS {data} {UNION} SELECT 'progress', tenant FROM progress"
    )


def downgrade() -> None:
    bind = op.get_bind()
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW tenant_data AS {data.rpartition(UNION)[0]}")
    bind.exec_driver_sql(DOWN)
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")

"""Tenants: storage quotas, usage by day, and erasure.

Triggers count the bytes of files and what batches have used, in the transactions that change them. So no
statement can forget it, and statements of older programs count, too. What existed before is counted here.
"""

from alembic import op

from batchline.store.statements import function

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

# In the order in which they use each other.
FUNCTIONS = (
    "require_tenant_v1",
    "require_room_v1",
    "tenant_open_v1",
    "charge_file_v1",
    "charge_upload_v1",
    "count_usage_v1",
    "count_stored_v1",
    "batch_counted_v1",
)

# Tables of which a tenant that is being erased gets no new rows, and what a new row means besides.
OPEN = {
    "batches": "batch",
    "api_keys": "key",
    "webhooks": "",
    "limit_subjects": "",
    "limit_overrides": "",
    "limit_exemptions": "",
}

TABLES = """
CREATE TABLE tenants (
    name        text PRIMARY KEY,
    -- Bytes of files that it may store; NULL: any number.
    max_bytes   bigint CHECK (max_bytes >= 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- While it is being erased: since when, and by whom.
    erasing_at  timestamptz,
    erasing_by  text,
    -- It was erased, and gets no new data until somebody creates a key for it.
    erased_at   timestamptz,
    CHECK (erasing_at IS NULL OR erased_at IS NULL)
);
CREATE INDEX tenants_erasing ON tenants (erasing_at) WHERE erasing_at IS NOT NULL;

-- What a tenant has used on a day, UTC. One row per day: a change appends a row and deletes the one before.
CREATE TABLE tenant_usage (
    tenant            text NOT NULL,
    day               date NOT NULL,
    seq               bigint GENERATED ALWAYS AS IDENTITY,
    -- Bytes that count for the quota after the last change of this day.
    stored            bigint NOT NULL,
    -- Bytes of files that were added.
    added             bigint NOT NULL,
    -- Of batches that have ended. Sums of what upstreams report may exceed a bigint.
    batches           bigint NOT NULL,
    lines             bigint NOT NULL,
    failed            bigint NOT NULL,
    reused            bigint NOT NULL,
    input_tokens      numeric NOT NULL,
    cached_tokens     numeric NOT NULL,
    output_tokens     numeric NOT NULL,
    reasoning_tokens  numeric NOT NULL,
    -- Nano-dollars.
    cost              numeric NOT NULL,
    PRIMARY KEY (tenant, day, seq)
) WITH (
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX tenant_usage_day ON tenant_usage (day, tenant);

-- Of batches that a retry has opened again: what was counted when they ended before.
CREATE TABLE usage_counted (
    batch_id          uuid PRIMARY KEY,
    completed         integer NOT NULL,
    failed            integer NOT NULL,
    reused            integer NOT NULL,
    input_tokens      bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    reasoning_tokens  bigint NOT NULL,
    cost              bigint NOT NULL
);

-- The tenants of deleted batches, until nothing refers to the batch any more.
CREATE TABLE deleted_batches (
    batch_id    uuid PRIMARY KEY,
    tenant      text NOT NULL,
    deleted_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deleted_batches_tenant ON deleted_batches (tenant, batch_id);

-- Bytes that count for the quota.
ALTER TABLE files ADD COLUMN charged bigint NOT NULL DEFAULT 0;
ALTER TABLE uploads ADD COLUMN charged bigint NOT NULL DEFAULT 0;
CREATE INDEX uploads_tenant ON uploads (tenant, id);
CREATE INDEX uploads_charged ON uploads (file_id) WHERE charged > 0;
CREATE INDEX abandoned_tasks_batch ON abandoned_tasks (batch_id);
CREATE INDEX deliveries_batch ON deliveries (batch_id);

ALTER TABLE api_keys DROP CONSTRAINT api_keys_role_check;
ALTER TABLE api_keys
    ADD CONSTRAINT api_keys_role_check CHECK (role IN ('user', 'approver', 'admin', 'operator', 'monitor'));

INSERT INTO maintenance_tasks (name, due_at) VALUES ('erasure', now());
"""

# The tables whose rows belong to a tenant. A row for each of their rows, so always ask for one tenant. Not:
# what a foreign key deletes together with one of these.
VIEW = """
CREATE VIEW tenant_data AS
SELECT 'files' AS relation, tenant FROM files
UNION ALL SELECT 'uploads', tenant FROM uploads
UNION ALL SELECT 'batches', tenant FROM batches
UNION ALL SELECT 'webhooks', tenant FROM webhooks
UNION ALL SELECT 'idempotency', tenant FROM idempotency
UNION ALL SELECT 'limit_subjects', tenant FROM limit_subjects
UNION ALL SELECT 'limit_overrides', tenant FROM limit_overrides
UNION ALL SELECT 'limit_exemptions', tenant FROM limit_exemptions
UNION ALL SELECT 'api_windows', tenant FROM api_windows
UNION ALL SELECT 'api_keys', tenant FROM api_keys
UNION ALL SELECT 'tenant_usage', tenant FROM tenant_usage
UNION ALL SELECT 'deleted_batches', tenant FROM deleted_batches;
"""

COUNT = """
UPDATE files AS f
SET charged = f.bytes
WHERE f.purged_at IS NULL
  AND (
      f.deleted_at IS NULL
      OR EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.id AND b.ended_at IS NULL)
  );
UPDATE uploads SET charged = bytes
WHERE completed_at IS NULL AND cancelled_at IS NULL AND expires_at > now();
INSERT INTO tenants (name)
SELECT 'default'
UNION SELECT tenant FROM files
UNION SELECT tenant FROM batches
UNION SELECT tenant FROM uploads
UNION SELECT tenant FROM api_keys
UNION SELECT tenant FROM webhooks
UNION SELECT tenant FROM limit_subjects WHERE tenant <> '';
-- Batches that a retry has opened again have not ended: what they used before will count at their end.
INSERT INTO tenant_usage (
    tenant, day, stored, added, batches, lines, failed, reused,
    input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost
)
SELECT
    tenant, day, 0, sum(added), sum(batches), sum(lines), sum(failed), sum(reused),
    sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), sum(cost)
FROM (
    SELECT
        tenant, (ended_at AT TIME ZONE 'UTC')::date AS day, 0::bigint AS added, 1 AS batches,
        (completed + failed)::bigint AS lines, failed::bigint AS failed, reused::bigint AS reused,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost
    FROM batches
    WHERE ended_at IS NOT NULL
    UNION ALL
    SELECT tenant, (created_at AT TIME ZONE 'UTC')::date, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 0
    FROM files
    UNION ALL
    SELECT tenant, (now() AT TIME ZONE 'UTC')::date, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    FROM uploads
) AS used
GROUP BY tenant, day;
-- How much was stored on earlier days is not known.
UPDATE tenant_usage AS u
SET stored = coalesce((SELECT sum(f.charged) FROM files AS f WHERE f.tenant = u.tenant), 0)
           + coalesce((SELECT sum(p.charged) FROM uploads AS p WHERE p.tenant = u.tenant), 0)
WHERE u.day = (SELECT max(n.day) FROM tenant_usage AS n WHERE n.tenant = u.tenant);
"""

TRIGGERS = """
CREATE TRIGGER files_charged BEFORE INSERT OR UPDATE OF bytes, deleted_at, purged_at ON files
    FOR EACH ROW EXECUTE FUNCTION charge_file_v1();
CREATE TRIGGER uploads_charged BEFORE INSERT OR UPDATE OF cancelled_at ON uploads
    FOR EACH ROW EXECUTE FUNCTION charge_upload_v1();
CREATE TRIGGER batches_ended AFTER UPDATE ON batches
    FOR EACH ROW WHEN ((OLD.ended_at IS NULL) <> (NEW.ended_at IS NULL)) EXECUTE FUNCTION batch_counted_v1();
CREATE TRIGGER batches_failed AFTER INSERT ON batches
    FOR EACH ROW WHEN (NEW.failed_at IS NOT NULL) EXECUTE FUNCTION batch_counted_v1();
CREATE TRIGGER batches_deleted AFTER DELETE ON batches
    FOR EACH ROW EXECUTE FUNCTION batch_counted_v1();
"""

STORED = """
CREATE TRIGGER {table}_added AFTER INSERT ON {table}
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION count_stored_v1();
CREATE TRIGGER {table}_changed AFTER UPDATE ON {table}
    REFERENCING OLD TABLE AS gone NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION count_stored_v1();
CREATE TRIGGER {table}_removed AFTER DELETE ON {table}
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_stored_v1();
"""

TENANT_OPEN = """
CREATE TRIGGER {table}_tenant AFTER INSERT ON {table}
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tenant_open_v1('{meaning}');
"""

DOWN = """
DROP VIEW tenant_data;
DROP TRIGGER batches_ended ON batches;
DROP TRIGGER batches_failed ON batches;
DROP TRIGGER batches_deleted ON batches;
DROP TRIGGER files_charged ON files;
DROP TRIGGER uploads_charged ON uploads;
"""

TABLES_DOWN = """
DELETE FROM maintenance_tasks WHERE name = 'erasure';
DROP INDEX uploads_tenant, abandoned_tasks_batch, deliveries_batch;
ALTER TABLE files DROP COLUMN charged;
ALTER TABLE uploads DROP COLUMN charged;
-- The version before has no operators. Their keys keep what an admin may do.
UPDATE api_keys SET role = 'admin' WHERE role = 'operator';
-- Nor has it keys that may only read metrics: any role would let them do more, so they are revoked.
UPDATE api_keys SET role = 'user', revoked_at = coalesce(revoked_at, now()) WHERE role = 'monitor';
ALTER TABLE api_keys DROP CONSTRAINT api_keys_role_check;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_role_check CHECK (role IN ('user', 'approver', 'admin'));
DROP TABLE deleted_batches, usage_counted, tenant_usage, tenants;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    for part in (TABLES, VIEW, COUNT):
        bind.exec_driver_sql(part)
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))
    bind.exec_driver_sql(TRIGGERS)
    for table in ("files", "uploads"):
        bind.exec_driver_sql(STORED.format(table=table))
    for table, meaning in OPEN.items():
        bind.exec_driver_sql(TENANT_OPEN.format(table=table, meaning=meaning))


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(DOWN)
    for table in ("files", "uploads"):
        for event in ("added", "changed", "removed"):
            bind.exec_driver_sql(f"DROP TRIGGER {table}_{event} ON {table}")
    for table in OPEN:
        bind.exec_driver_sql(f"DROP TRIGGER {table}_tenant ON {table}")
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    bind.exec_driver_sql(TABLES_DOWN)

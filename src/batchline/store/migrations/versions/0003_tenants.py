"""API keys of tenants, idempotency keys, and batches that fail validation."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE api_keys (
    id          uuid PRIMARY KEY,
    name        text NOT NULL,
    tenant      text NOT NULL,
    role        text NOT NULL CHECK (role IN ('user', 'approver', 'admin')),
    -- SHA-256 of the key. The key has 256 random bits, so a slow hash would protect nothing more.
    hash        bytea NOT NULL UNIQUE,
    -- The first characters, to distinguish keys in a list.
    hint        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    revoked_at  timestamptz
);

-- The object that a caller's idempotency key created, written in the same transaction as the object.
CREATE TABLE idempotency (
    tenant       text NOT NULL,
    scope        text NOT NULL,
    key          text NOT NULL,
    fingerprint  bytea NOT NULL,
    object_id    uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, scope, key)
);
CREATE INDEX idempotency_oldest ON idempotency (created_at);

ALTER TABLE batches
    -- Why it failed validation: [{code, message, param, line}].
    ADD COLUMN errors                jsonb,
    -- The model of all its lines, if they share one.
    ADD COLUMN model                 text,
    ADD COLUMN output_expires_after  integer,
    -- The id that its output file will have, so that it can be read while the batch runs.
    ADD COLUMN planned_output_id     uuid,
    DROP CONSTRAINT batches_total_check,
    ADD CONSTRAINT batches_total_check CHECK (total > 0 OR failed_at IS NOT NULL);
CREATE UNIQUE INDEX batches_planned_output ON batches (planned_output_id) WHERE planned_output_id IS NOT NULL;
"""

DOWN = """
DELETE FROM batches WHERE total = 0;
ALTER TABLE batches
    DROP CONSTRAINT batches_total_check,
    ADD CONSTRAINT batches_total_check CHECK (total > 0),
    DROP COLUMN planned_output_id,
    DROP COLUMN output_expires_after,
    DROP COLUMN model,
    DROP COLUMN errors;
DROP TABLE idempotency, api_keys;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

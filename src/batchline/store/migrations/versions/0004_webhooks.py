"""Webhooks and their deliveries.

An event of the outbox becomes one delivery for each of the tenant's webhooks that subscribes to its type.
Webhooks are scheduled, not deliveries: each webhook gets one delivery at a time, and a receiver that fails is
not tried for a while, so it does not delay the others.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE webhooks (
    id               uuid PRIMARY KEY,
    tenant           text NOT NULL,
    name             text NOT NULL,
    url              text NOT NULL,
    events           text[] NOT NULL,
    -- Standard Webhooks sign with the secret itself, so a hash is not enough.
    secret           text NOT NULL,
    -- After a rotation both secrets sign, until this moment.
    previous_secret  text,
    previous_until   timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    -- Nothing is sent before this time: a worker holds the lease, or the receiver has failed.
    rests_until      timestamptz,
    -- Consecutive failed attempts, of any delivery.
    failures         integer NOT NULL DEFAULT 0,
    -- When the next delivery may be sent; NULL: nothing to send.
    due_at           timestamptz
) WITH (fillfactor = 50);
CREATE INDEX webhooks_tenant ON webhooks (tenant, created_at, id);
CREATE INDEX webhooks_due ON webhooks (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE deliveries (
    webhook_id    uuid NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    event_id      uuid NOT NULL,
    batch_id      uuid NOT NULL,
    type          text NOT NULL,
    -- When the event occurred.
    occurred_at   timestamptz NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    available_at  timestamptz NOT NULL DEFAULT now(),
    delivered_at  timestamptz,
    -- Set when the delivery is abandoned, after a day of attempts.
    failed_at     timestamptz,
    last_status   integer,
    last_error    text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (webhook_id, event_id)
) WITH (fillfactor = 80);
CREATE INDEX deliveries_open ON deliveries (webhook_id, available_at)
    WHERE delivered_at IS NULL AND failed_at IS NULL;
CREATE INDEX deliveries_oldest ON deliveries (created_at);
"""

DOWN = """
DROP TABLE deliveries, webhooks;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

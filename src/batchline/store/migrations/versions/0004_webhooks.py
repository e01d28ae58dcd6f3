"""Webhooks: who wants to hear of a tenant's batches, and what has been said to them.

An event of the outbox becomes one delivery for each of the tenant's webhooks that asked for its type. The
webhook is what is scheduled: one delivery at a time is sent to it, and a receiver that fails is left in
peace for a while, so that one deaf receiver holds up no other.
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
    -- Standard Webhooks sign with the secret itself, so a hash of it would not do.
    secret           text NOT NULL,
    -- After a rotation both secrets sign, until this moment.
    previous_secret  text,
    previous_until   timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    -- Nothing is sent before: a worker is sending under this lease, or the receiver has failed and rests.
    rests_until      timestamptz,
    -- Attempts in a row that failed, whatever they were about.
    failures         integer NOT NULL DEFAULT 0,
    -- When there is something to send and it may be sent; NULL: nothing to send.
    due_at           timestamptz
) WITH (fillfactor = 50);
CREATE INDEX webhooks_tenant ON webhooks (tenant, created_at, id);
CREATE INDEX webhooks_due ON webhooks (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE deliveries (
    webhook_id    uuid NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    event_id      uuid NOT NULL,
    batch_id      uuid NOT NULL,
    type          text NOT NULL,
    -- When what it tells of happened.
    occurred_at   timestamptz NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    available_at  timestamptz NOT NULL DEFAULT now(),
    delivered_at  timestamptz,
    -- Given up after a day of attempts.
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

"""Governed operations: submitters, approvals and holds, limits, and an append-only audit log.

A governed batch is an ordinary batch with a second row for its owner and the decision about it. The limits
count pending batches per user in `batches`, by a partial index, so no counter can drift.

The audit log refuses UPDATE, DELETE and TRUNCATE by triggers, which also apply to the owner of the table. The
downgrade drops it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE batches
    -- The owner of a governed batch; NULL for an ordinary batch.
    ADD COLUMN submitted_by  text,
    -- It waits for an approval or a release: its lanes are closed, and a resume does not open them.
    ADD COLUMN held_at       timestamptz;
-- The batches that count towards the limits.
CREATE INDEX batches_governed ON batches (tenant, submitted_by)
    WHERE submitted_by IS NOT NULL AND finalizing_at IS NULL AND ended_at IS NULL;

CREATE TABLE operation_batches (
    batch_id          uuid PRIMARY KEY REFERENCES batches ON DELETE CASCADE,
    tenant            text NOT NULL,
    user_id           text NOT NULL,
    operation         text NOT NULL,
    -- The caller's idempotency key, and a hash of the whole request.
    request_id        uuid,
    fingerprint       bytea NOT NULL,
    reason            text,
    -- Not now(): the cooldown starts here, and the transaction may have waited for locks.
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),

    approval          text NOT NULL CHECK (approval IN ('not_required', 'pending', 'approved', 'rejected')),
    decided_by        text,
    decided_at        timestamptz,
    decision_reason   text,

    -- Submitted with `hold`, and not released yet.
    held              boolean NOT NULL DEFAULT false,
    released_at       timestamptz,

    -- Number of retries, children retried in total, and the time of the last retry.
    retries           integer NOT NULL DEFAULT 0,
    retried_children  integer NOT NULL DEFAULT 0,
    retried_at        timestamptz,
    -- Time from submission to its first end, kept when a retry reopens it.
    first_took        interval,

    cancelled_by      text,
    CHECK ((approval IN ('approved', 'rejected')) = (decided_by IS NOT NULL))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX operation_batches_request ON operation_batches (tenant, user_id, operation, request_id)
    WHERE request_id IS NOT NULL;
CREATE INDEX operation_batches_user ON operation_batches (tenant, user_id, created_at, batch_id);
CREATE INDEX operation_batches_newest ON operation_batches (tenant, created_at, batch_id);
CREATE INDEX operation_batches_pending ON operation_batches (tenant, created_at) WHERE approval = 'pending';

-- Rows that submissions lock, in this order: the global row, with empty names, then the user's.
CREATE TABLE limit_subjects (
    tenant      text NOT NULL,
    user_id     text NOT NULL,
    checked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, user_id)
) WITH (fillfactor = 50);
INSERT INTO limit_subjects (tenant, user_id) VALUES ('', '');

CREATE TABLE limit_overrides (
    tenant                text NOT NULL,
    user_id               text NOT NULL,
    max_pending_parents   integer NOT NULL CHECK (max_pending_parents >= 1),
    max_pending_children  integer NOT NULL CHECK (max_pending_children >= 1),
    cooldown_seconds      integer NOT NULL CHECK (cooldown_seconds >= 0),
    reason                text NOT NULL,
    set_by                text NOT NULL,
    set_at                timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, user_id)
);

CREATE TABLE limit_exemptions (
    tenant       text NOT NULL,
    user_id      text NOT NULL,
    reason       text NOT NULL,
    expires_at   timestamptz NOT NULL,
    exempted_by  text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, user_id)
);

-- Requests per minute.
CREATE TABLE api_windows (
    starts_at  timestamptz PRIMARY KEY,
    requests   integer NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant       text NOT NULL,
    -- A user, or `system`.
    actor        text NOT NULL,
    action       text NOT NULL,
    batch_id     uuid,
    -- The child's number, if the record is about the end of a child.
    sequence_no  integer,
    -- The user that an admin's change concerns.
    subject      text,
    detail       jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_tenant ON audit_log (tenant, id);
CREATE INDEX audit_log_batch ON audit_log (batch_id, id) WHERE batch_id IS NOT NULL;

CREATE FUNCTION refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        MESSAGE = 'the audit log is append-only: ' || TG_OP || ' is refused',
        ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- Also for sessions with session_replication_role = replica, in which ordinary triggers do not fire.
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_append_only;
"""

DOWN = """
DROP TABLE audit_log;
DROP FUNCTION refuse_change;
DROP TABLE api_windows, limit_exemptions, limit_overrides, limit_subjects, operation_batches;
-- In the previous version, only paused batches have closed lanes.
UPDATE batches SET paused_at = coalesce(paused_at, held_at)
WHERE held_at IS NOT NULL AND finalizing_at IS NULL AND cancelling_at IS NULL AND expiring_at IS NULL;
DROP INDEX batches_governed;
ALTER TABLE batches DROP COLUMN held_at, DROP COLUMN submitted_by;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWN)

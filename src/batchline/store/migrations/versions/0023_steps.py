"""Batches that run in steps, and approvals that name what was approved.

The lines of a step are put into free spans when it begins. Lines that no step has begun with are held back:
they lie past the cursor of a lane that counts as drained, or in a free span that is available in the year
9999. So claims need not know of steps.
"""

from alembic import op

from batchline.store.statements import function

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

FUNCTIONS = ("step_size_v1", "begin_step_v1", "end_step_v1", "operation_digest_v1")

COLUMNS = """
ALTER TABLE batches
    -- How many steps have begun. A sample is not counted.
    ADD COLUMN step           integer NOT NULL DEFAULT 0,
    -- How many lines may run so far, with those that have ended. NULL: all of them.
    ADD COLUMN step_total     integer,
    ADD COLUMN step_began_at  timestamptz,
    -- All lines that may run have ended, and the next step begins then.
    ADD COLUMN next_step_at   timestamptz;
CREATE INDEX batches_next_step ON batches (next_step_at)
    WHERE next_step_at IS NOT NULL AND finalizing_at IS NULL AND paused_at IS NULL AND held_at IS NULL
      AND cancelling_at IS NULL AND expiring_at IS NULL;
-- The digest of what was approved or rejected.
ALTER TABLE operation_batches ADD COLUMN decided_digest text;

-- A sample that has not been decided on: as of now, the rest waits in spans that are held back. One that has
-- not ended is paused as by a user: a resume runs it, and its end asks for the decision.
UPDATE spans AS s
SET available_at = '9999-12-31 00:00:00+00'
FROM batches AS b
WHERE b.id = s.batch_id AND b.paused_by = 'sample' AND s.worker_id IS NULL AND s.available_at = b.paused_at;
UPDATE batches AS b
SET step_total = b.total - held_back.items,
    step_began_at = b.paused_at,
    next_step_at = CASE WHEN c.completed + c.failed = b.total - held_back.items THEN now() END,
    paused_by = CASE WHEN c.completed + c.failed = b.total - held_back.items THEN 'sample' END
FROM current_batches AS c
JOIN (
    SELECT s.batch_id, sum(span_size(s.outstanding)) AS items
    FROM spans AS s
    WHERE s.available_at = '9999-12-31 00:00:00+00'
    GROUP BY s.batch_id
) AS held_back ON held_back.batch_id = c.id
WHERE b.paused_by = 'sample' AND c.id = b.id;
"""

# What is held back would run at once in the version before. So such batches are paused, as by a user.
BACK = """
UPDATE batches
SET paused_at = coalesce(paused_at, now()), paused_by = NULL
WHERE step_total IS NOT NULL AND finalizing_at IS NULL AND cancelling_at IS NULL AND expiring_at IS NULL;
UPDATE lanes AS n SET open = false
FROM batches AS b
WHERE b.id = n.batch_id AND b.step_total IS NOT NULL AND n.open;
UPDATE spans SET available_at = now() WHERE worker_id IS NULL AND available_at = '9999-12-31 00:00:00+00';
UPDATE lanes SET drained = false WHERE drained AND next < total;
"""
DROP = """
ALTER TABLE operation_batches DROP COLUMN decided_digest;
DROP INDEX batches_next_step;
ALTER TABLE batches
    DROP COLUMN step, DROP COLUMN step_total, DROP COLUMN step_began_at, DROP COLUMN next_step_at;
"""

# The views are taken as they are: what other migrations have added to them stays.
VIEW = "SELECT pg_get_viewdef('{}'::regclass)"
END = "\n   FROM "
BATCH_COLUMNS = ",\n    b.step,\n    b.step_total,\n    b.step_began_at,\n    b.next_step_at"
GOVERNED_COLUMNS = (
    ",\n    b.paused_by,\n    b.step,\n    b.step_total,\n    b.next_step_at,\n    b.settings"
    ",\n    o.decided_digest"
)
# As PostgreSQL writes it, whatever the time zone.
HELD_BACK = "make_timestamptz(9999, 12, 31, 0, 0, (0)::double precision, 'UTC'::text)"
RETRYING = "WHEN (s.available_at > now()) THEN 'retrying'::text"
NOT_HELD_BACK = f"WHEN ((s.available_at > now()) AND (s.available_at < {HELD_BACK})) THEN 'retrying'::text"
NOT_BEFORE = "s.available_at AS not_before"
NULL_BEFORE = f"NULLIF(s.available_at, {HELD_BACK}) AS not_before"

TRIGGER = """
CREATE OR REPLACE TRIGGER batches_updated BEFORE UPDATE OF
    total, expires_at, paused_at, held_at, cancelling_at, expiring_at, finalizing_at,
    completed_at, cancelled_at, expired_at, failed_at, purging_at{more}
    ON batches FOR EACH ROW WHEN (NEW.submitted_by IS NOT NULL) EXECUTE FUNCTION stamp_update();
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(COLUMNS)
    for name, more in (("current_batches", BATCH_COLUMNS), ("governed_batches", GOVERNED_COLUMNS)):
        columns, end, rest = bind.exec_driver_sql(VIEW.format(name)).scalar_one().partition(END)
        bind.exec_driver_sql(f"CREATE OR REPLACE VIEW {name} AS {columns}{more}{end}{rest}")
    requests = bind.exec_driver_sql(VIEW.format("requests")).scalar_one()
    for before, after in ((RETRYING, NOT_HELD_BACK), (NOT_BEFORE, NULL_BEFORE)):
        assert before in requests
        requests = requests.replace(before, after, 1)
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW requests AS {requests}")
    bind.exec_driver_sql(TRIGGER.format(more=", step, next_step_at"))
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    bind.exec_driver_sql(BACK)
    bind.exec_driver_sql(TRIGGER.format(more=""))
    for name, more in (("current_batches", BATCH_COLUMNS), ("governed_batches", GOVERNED_COLUMNS)):
        view = bind.exec_driver_sql(VIEW.format(name)).scalar_one()
        assert more in view
        bind.exec_driver_sql(f"DROP VIEW {name}")
        bind.exec_driver_sql(f"CREATE VIEW {name} AS {view.replace(more, '', 1)}")
    requests = bind.exec_driver_sql(VIEW.format("requests")).scalar_one()
    for before, after in ((NOT_HELD_BACK, RETRYING), (NULL_BEFORE, NOT_BEFORE)):
        assert before in requests
        requests = requests.replace(before, after, 1)
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW requests AS {requests}")
    bind.exec_driver_sql(DROP)

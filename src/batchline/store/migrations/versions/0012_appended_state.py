"""Claim and settle are functions that append what changes. They stay fast while a snapshot is held elsewhere.

A lane's cursor and a batch's counters changed with every claim and settle, in place. PostgreSQL cannot remove
old versions of a row while any transaction might still see them, and every look-up has to walk past them.
Now the rows of lanes and batches do not change: the cursor and the counters are appended to tables of their
own and read newest first. Where there is no such row, `lanes.next` and the counters of `batches` count:
before the first claim or settle, when the lane is drained, and when the batch is frozen.

Every span that is held has a row in `workers`, so expired workers are found there. Free spans are indexed by
lane.
"""

from alembic import op

from batchline.store.statements import function

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# In the order in which they use each other.
FUNCTIONS = (
    "require_read_committed_v1",
    "in_scope_v1",
    "fair_shares_v1",
    "returned_lanes_v1",
    "waiting_tenants_v1",
    "waiting_lanes_v1",
    "tenant_shares_v1",
    "renew_lease_v1",
    "claim_returned_v1",
    "claim_fresh_v1",
    "lock_lanes_v1",
    "claim_v1",
    "claim_new_v1",
    "freeze_v1",
    "conclude_now_v1",
    "conclude_v1",
    "record_verdicts_v1",
    "add_counts_v1",
    "audit_ended_v1",
    "settle_v1",
    "leave_v1",
)

# Rows are inserted and deleted, never updated: no room is left on their pages.
APPENDED = """
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
"""

TABLES = f"""
-- The newest counts: the one with the largest `next`.
CREATE TABLE cursors (
    lane_id  bigint NOT NULL,
    next     integer NOT NULL,
    PRIMARY KEY (lane_id, next)
) WITH ({APPENDED});

-- The newest counts: the one with the largest `seq`.
CREATE TABLE counters (
    batch_id          uuid NOT NULL,
    seq               bigint GENERATED ALWAYS AS IDENTITY,
    completed         integer NOT NULL,
    failed            integer NOT NULL,
    input_tokens      bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    reasoning_tokens  bigint NOT NULL,
    PRIMARY KEY (batch_id, seq)
) WITH ({APPENDED});

DROP INDEX spans_due;
CREATE INDEX spans_free ON spans (lane_id, available_at, id) WHERE worker_id IS NULL;

INSERT INTO workers (id, name, lease_until)
SELECT DISTINCT worker_id, 'unknown', now() - interval '1 second' FROM spans WHERE worker_id IS NOT NULL
ON CONFLICT (id) DO NOTHING;
ALTER TABLE spans ADD CONSTRAINT spans_worker FOREIGN KEY (worker_id) REFERENCES workers (id);

UPDATE schema_compatibility SET compatible_from = '0012';
"""

VIEWS = """
CREATE VIEW current_lanes AS
SELECT
    n.id,
    n.batch_id,
    n.tenant,
    n.key,
    n.deadline,
    n.file_no,
    n.lane_no,
    n.model,
    n.url,
    coalesce(
        (SELECT c.next FROM cursors AS c WHERE c.lane_id = n.id ORDER BY c.next DESC LIMIT 1),
        n.next
    ) AS next,
    n.total,
    n.open,
    n.drained
FROM lanes AS n;

CREATE VIEW current_batches AS
SELECT
    b.id,
    b.tenant,
    b.file_id,
    b.endpoint,
    b.completion_window,
    b.settings,
    b.metadata,
    b.resume_key,
    b.total,
    coalesce(c.completed, b.completed) AS completed,
    coalesce(c.failed, b.failed) AS failed,
    coalesce(c.input_tokens, b.input_tokens) AS input_tokens,
    coalesce(c.cached_tokens, b.cached_tokens) AS cached_tokens,
    coalesce(c.output_tokens, b.output_tokens) AS output_tokens,
    coalesce(c.reasoning_tokens, b.reasoning_tokens) AS reasoning_tokens,
    b.created_at,
    b.in_progress_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.completed_at,
    b.cancelled_at,
    b.expired_at,
    b.failed_at,
    b.ended_at,
    b.finalizer,
    b.output_file_id,
    b.error_file_id,
    b.summary,
    b.purging_at,
    b.purged_at,
    b.errors,
    b.model,
    b.output_expires_after,
    b.planned_output_id,
    b.submitted_by,
    b.held_at,
    b.finalize_failures,
    b.finalize_after,
    b.finalize_error
FROM batches AS b
LEFT JOIN LATERAL (
    SELECT * FROM counters WHERE counters.batch_id = b.id ORDER BY counters.seq DESC LIMIT 1
) AS c ON true;
"""

REQUESTS = """
CREATE OR REPLACE VIEW requests AS
SELECT
    b.id AS batch_id,
    n.id AS lane_id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    n.model,
    CASE
        WHEN r.outcome IS NOT NULL THEN r.outcome::text
        -- Said only of what can have no outcome any more. What was handed out before the batch was closed
        -- may still be finished until it is frozen.
        WHEN b.cancelling_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= n.next)
            THEN 'canceled'
        WHEN b.expiring_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= n.next)
            THEN 'expired'
        WHEN s.task_id IS NOT NULL THEN 'processing'
        WHEN s.worker_id IS NOT NULL THEN 'claimed'
        WHEN s.available_at > now() THEN 'retrying'
        ELSE 'pending'
    END AS state,
    coalesce(r.attempt, s.attempt, 1) AS attempt,
    s.worker_id,
    s.task_id,
    s.available_at AS not_before,
    r.status_code,
    r.finished_at
FROM batches AS b
JOIN lanes AS n ON n.batch_id = b.id
JOIN lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
LEFT JOIN results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
LEFT JOIN LATERAL (
    SELECT * FROM spans
    WHERE spans.batch_id = b.id AND spans.lane_id = n.id AND spans.outstanding @> l.ordinal
    LIMIT 1
) AS s ON l.ordinal < n.next AND r.outcome IS NULL
WHERE b.purging_at IS NULL
"""

GOVERNED = """
CREATE OR REPLACE VIEW governed_batches AS
SELECT
    o.batch_id AS id,
    o.tenant,
    o.user_id,
    o.operation,
    o.request_id,
    o.reason,
    o.approval,
    o.decided_by,
    o.decided_at,
    o.decision_reason,
    o.held,
    o.released_at,
    o.retries,
    o.retried_at,
    b.total,
    b.completed,
    b.failed,
    o.created_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.ended_at,
    b.purging_at
FROM batches AS b
JOIN operation_batches AS o ON o.batch_id = b.id
"""

# Not over current_batches: rows cannot be locked through its outer join. If a batch was frozen while somebody
# waited for its row, the row counts.
COUNTED = """CASE
        WHEN b.finalizing_at IS NULL THEN coalesce(
            (SELECT c.{name} FROM counters AS c WHERE c.batch_id = b.id ORDER BY c.seq DESC LIMIT 1), b.{name}
        )
        ELSE b.{name}
    END AS {name}"""

# What the cursors and counters say goes back to the rows.
BACK = """
UPDATE lanes AS n SET next = c.next FROM current_lanes AS c WHERE c.id = n.id AND c.next <> n.next;
UPDATE batches AS b
SET completed = c.completed,
    failed = c.failed,
    input_tokens = c.input_tokens,
    cached_tokens = c.cached_tokens,
    output_tokens = c.output_tokens,
    reasoning_tokens = c.reasoning_tokens
FROM current_batches AS c
WHERE c.id = b.id AND EXISTS (SELECT FROM counters WHERE counters.batch_id = b.id);
DROP VIEW current_batches, current_lanes;
DROP TABLE counters, cursors;
ALTER TABLE spans DROP CONSTRAINT spans_worker;
DROP INDEX spans_free;
CREATE INDEX spans_due ON spans (available_at, id) WHERE worker_id IS NULL;
UPDATE schema_compatibility SET compatible_from = '0011';
"""


# A claim or settle that is under way would write what this migration has just moved.
ALONE = "LOCK TABLE workers, spans, batches, lanes IN ACCESS EXCLUSIVE MODE"


def upgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(ALONE)
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    governed = GOVERNED
    for name in ("completed", "failed"):
        governed = governed.replace(f"b.{name},", COUNTED.format(name=name) + ",")
    for part in (TABLES, VIEWS, REQUESTS.replace(" lanes ", " current_lanes "), governed):
        bind.exec_driver_sql(part)
    # They are today's functions, and name columns that later migrations add.
    bind.exec_driver_sql("SET LOCAL check_function_bodies = off")
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))
    bind.exec_driver_sql("SET LOCAL check_function_bodies = on")


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(ALONE)
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    for part in (REQUESTS, GOVERNED, BACK):
        bind.exec_driver_sql(part)

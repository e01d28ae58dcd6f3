"""Chunks of lines that a provider's batch API works on.

A chunk's span has the chunk's id as its task, after `chunk:`. Programs of 0030 know no chunks: they would
take the span of a lost worker for that of one item. So no relay may run before all workers have been
replaced.
"""

from alembic import op
from sqlalchemy import Connection

from batchline.store.statements import function

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

ADDED = ("form_chunk_v1", "take_chunks_v1", "chunks_deleted_v1")

# No foreign key to the batch: a batch may be deleted while the provider works on it, and then the row says
# what to cancel there.
TABLE = """
CREATE TABLE provider_chunks (
    id              uuid PRIMARY KEY,
    batch_id        uuid NOT NULL,
    lane_id         bigint NOT NULL,
    span_id         bigint NOT NULL,
    upstream        text NOT NULL,
    -- Where it is, whatever the settings say later.
    base_url        text NOT NULL DEFAULT '',
    api             text NOT NULL DEFAULT 'openai',
    state           text NOT NULL DEFAULT 'prepared'
        CHECK (state IN ('prepared', 'uploaded', 'creating', 'submitted', 'ended', 'done')),
    attempt         integer NOT NULL,
    ordinals        int4multirange NOT NULL,
    lines           integer NOT NULL,
    bytes           bigint NOT NULL,
    tokens          bigint NOT NULL,
    -- The limits of all open chunks of its upstream when it was formed, for people.
    chunk_limit     integer,
    token_limit     bigint,
    file_id         text,
    provider_batch  text,
    -- Batches over this chunk that the provider has refused as a whole.
    refused         text[] NOT NULL DEFAULT '{}',
    searches        smallint NOT NULL DEFAULT 0,
    -- When a creation began, and when the provider was first searched for it in vain.
    creating_at     timestamptz,
    searched_at     timestamptz,
    -- How often it was submitted again without knowing what became of the submission before.
    resubmissions   smallint NOT NULL DEFAULT 0,
    cancelling      boolean NOT NULL DEFAULT false,
    outcome         text,
    missing         integer NOT NULL DEFAULT 0,
    unknown         integer NOT NULL DEFAULT 0,
    doubled         integer NOT NULL DEFAULT 0,
    unreadable      integer NOT NULL DEFAULT 0,
    error           text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    submitted_at    timestamptz,
    ended_at        timestamptz,
    due_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX provider_chunks_batch ON provider_chunks (batch_id);
CREATE INDEX provider_chunks_open ON provider_chunks (upstream, id) WHERE state <> 'done';
"""

TRIGGER = """
CREATE TRIGGER chunks_deleted AFTER DELETE ON batches
FOR EACH ROW EXECUTE FUNCTION chunks_deleted_v1();
"""

# Lines of chunks go back as lines with an unknown submission: older programs hold or look up such lines.
PUT_BACK = """
UPDATE spans AS s
SET task_id = NULL, upstream = NULL, submission = 'unknown', available_at = least(s.available_at, now())
FROM provider_chunks AS c
WHERE c.span_id = s.id AND s.task_id = 'chunk:' || c.id;
"""


# A free chunk is available in the year 9998, and nobody waits for that. What becomes of one that is held, the
# operator decides. The views are taken as they are, as PostgreSQL shows them.
VIEW = "SELECT pg_get_viewdef('{}'::regclass)"
HELD_BACK = "make_timestamptz(9999, 12, 31, 0, 0, (0)::double precision, 'UTC'::text)"
FREE_CHUNK = "make_timestamptz(9998, 1, 1, 0, 0, (0)::double precision, 'UTC'::text)"
NOT_HELD_BACK = f"NULLIF(s.available_at, {HELD_BACK})"
NOT_BEFORE = f"NULLIF({NOT_HELD_BACK}, {FREE_CHUNK}) AS not_before"
UNKNOWN = "(s.submission IS DISTINCT FROM 'unknown'::text)"
SHOWN = (
    ("requests", f"{NOT_HELD_BACK} AS not_before", NOT_BEFORE),
    ("provider_items", "s.available_at AS not_before", NOT_BEFORE),
    (
        "provider_items",
        "WHEN (s.task_id IS NOT NULL) THEN 'processing'",
        f"WHEN ((s.task_id IS NOT NULL) AND ((s.worker_id IS NOT NULL) OR {UNKNOWN})) THEN 'processing'",
    ),
)


def change_view(bind: Connection, name: str, before: str, after: str) -> None:
    view = bind.exec_driver_sql(VIEW.format(name)).scalar_one()
    assert view.count(before) == 1
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW {name} AS {view.replace(before, after)}")


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    for part in (TABLE, *(function(name, schema) for name in ADDED), TRIGGER):
        bind.exec_driver_sql(part)
    for name, before, after in SHOWN:
        change_view(bind, name, before, after)


def downgrade() -> None:
    bind = op.get_bind()
    for name, before, after in SHOWN:
        change_view(bind, name, after, before)
    bind.exec_driver_sql(PUT_BACK)
    bind.exec_driver_sql("DROP TRIGGER chunks_deleted ON batches")
    for name in reversed(ADDED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    bind.exec_driver_sql("DROP TABLE provider_chunks")

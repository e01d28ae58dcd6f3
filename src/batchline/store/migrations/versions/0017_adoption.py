"""The state of `batchline adopt`: which old files, lines and batches have which numbers here.

Empty unless a database with one row per request is being adopted. What `prepare` copies into `lines` and
`results` has numbers that are reserved in these tables. It belongs to no file and no batch before the
cutover, so nothing else sees it. `adopt prepare` also creates the views `source_…` over the old tables.
"""

from alembic import op

from batchline.store.errors import StoreUnusable

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

UP = """
-- At most one row.
CREATE TABLE adoption (
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    -- The schema of the old tables, and their shape, for people.
    source          text NOT NULL,
    shape           text NOT NULL,
    phase           text NOT NULL CHECK (phase IN ('prepare', 'prepared', 'adopted', 'finished')),
    -- The next page of the old table of requests to read.
    next_page       bigint NOT NULL DEFAULT 0,
    -- A pass that has ended has read what was written before transaction `seen_xid`; the current one reads
    -- what was written before `pass_xid`.
    seen_xid        bigint NOT NULL DEFAULT 0,
    pass_xid        bigint NOT NULL DEFAULT 0,
    -- What was copied, and how long that took: for estimates.
    lines           bigint NOT NULL DEFAULT 0,
    lines_seconds   double precision NOT NULL DEFAULT 0,
    results         bigint NOT NULL DEFAULT 0,
    results_seconds double precision NOT NULL DEFAULT 0,
    cutover_seconds double precision,
    began_at        timestamptz NOT NULL DEFAULT now(),
    prepared_at     timestamptz,
    cutover_at      timestamptz,
    rolled_back_at  timestamptz,
    finished_at     timestamptz
);

CREATE TABLE adopted_files (
    file_id      uuid PRIMARY KEY,
    file_no      bigint NOT NULL UNIQUE,
    line_count   integer NOT NULL DEFAULT 0,
    -- Templates of other methods than POST, which cannot run here.
    not_post     integer NOT NULL DEFAULT 0,
    -- Lines 1 to `copied` are in `lines`.
    copied       integer NOT NULL DEFAULT 0,
    -- A template that was changed later than this makes the file be copied again.
    numbered_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE adopted_file_lanes (
    file_no  bigint NOT NULL,
    lane_no  integer NOT NULL,
    model    text NOT NULL,
    url      text NOT NULL,
    total    integer NOT NULL,
    PRIMARY KEY (file_no, lane_no)
);

-- Which line an old template is.
CREATE TABLE adopted_lines (
    file_no      bigint NOT NULL,
    line_no      integer NOT NULL,
    lane_no      integer NOT NULL,
    ordinal      integer NOT NULL,
    template_id  uuid NOT NULL UNIQUE,
    PRIMARY KEY (file_no, line_no)
);

CREATE TABLE adopted_batches (
    batch_id    uuid PRIMARY KEY,
    file_no     bigint NOT NULL,
    -- Why it cannot be adopted; NULL if it can. Decided at the cutover, with the counts of requests.
    reason      text,
    completed   integer,
    failed      integer,
    canceled    integer,
    unfinished  integer
);
CREATE INDEX adopted_batches_file ON adopted_batches (file_no);

-- The lanes that the batches get.
CREATE TABLE adopted_lanes (
    lane_id           bigint PRIMARY KEY,
    batch_id          uuid NOT NULL,
    lane_no           integer NOT NULL,
    cached_tokens     bigint NOT NULL DEFAULT 0,
    reasoning_tokens  bigint NOT NULL DEFAULT 0,
    -- Measured at the cutover: the cursor, and what the results add up to.
    next              integer NOT NULL DEFAULT 0,
    completed         bigint NOT NULL DEFAULT 0,
    failed            bigint NOT NULL DEFAULT 0,
    input_tokens      bigint NOT NULL DEFAULT 0,
    output_tokens     bigint NOT NULL DEFAULT 0,
    UNIQUE (batch_id, lane_no)
);

-- Requests that may have been sent by a program that stopped before it stored the answer. They run again.
CREATE TABLE adopted_in_flight (
    batch_id    uuid NOT NULL,
    line_no     integer NOT NULL,
    -- Whose request it was: found at the cutover (an old daemon's) or at a rollback (a worker's).
    found_by    text NOT NULL CHECK (found_by IN ('cutover', 'rollback')),
    request_id  uuid,
    custom_id   text NOT NULL,
    state       text NOT NULL,
    claimed_at  timestamptz,
    found_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch_id, line_no, found_by)
);

-- Refuses writes to the old tables between the cutover and a rollback: an old daemon that somebody starts
-- would send requests a second time. Our own writes set a variable for their transaction.
CREATE FUNCTION adopted_fence_v1() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF coalesce(current_setting('batchline.adopting', true), '') <> 'on' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'Batchline has adopted this database: table ' || TG_TABLE_NAME || ' is read-only',
            HINT = 'Use Batchline, or go back with `batchline adopt rollback`.';
    END IF;
    RETURN NULL;
END
$$;
"""

# CASCADE drops the triggers that a rollback has disabled. What was copied for a cutover that did not happen
# belongs to nothing.
DOWN = """
DELETE FROM lines AS l
USING adopted_files AS f
WHERE l.file_no = f.file_no AND NOT EXISTS (SELECT FROM files WHERE files.no = f.file_no);
DELETE FROM results AS r
USING adopted_lanes AS n
WHERE r.lane_id = n.lane_id AND NOT EXISTS (SELECT FROM lanes WHERE lanes.id = n.lane_id);
DROP FUNCTION adopted_fence_v1 CASCADE;
DROP VIEW IF EXISTS source_files, source_templates, source_batches, source_requests, source_daemons;
DROP TABLE adopted_in_flight, adopted_lanes, adopted_batches, adopted_lines, adopted_file_lanes,
           adopted_files, adoption;
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    bind = op.get_bind()
    phase = bind.exec_driver_sql("SELECT phase FROM adoption FOR UPDATE").scalar()
    if phase == "adopted":
        raise StoreUnusable(
            "Batchline has adopted this database, and old daemons would run its requests again; nothing was"
            " changed: run `batchline adopt rollback` or `batchline adopt finish` first"
        )
    bind.exec_driver_sql(DOWN)

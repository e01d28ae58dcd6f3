"""Answers of earlier batches are reused: hashes of lines, and how many answers a batch has reused.

Both are empty at first. A file is hashed when a batch over it takes part in a reuse for the first time.
"""

from alembic import op

from batchline.store.statements import function

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# In the order in which they use each other.
FUNCTIONS = ("hash_lines_v1", "answered_by_v1", "reuse_sources_v1", "still_reusable_v1", "reuse_v1")

TABLES = """
ALTER TABLE batches ADD COLUMN reused integer NOT NULL DEFAULT 0;

-- One row: random numbers, so that nobody outside knows which lines have the same hash.
CREATE TABLE hash_seeds (
    hash   bigint NOT NULL,
    proof  bigint NOT NULL
);
INSERT INTO hash_seeds (hash, proof)
VALUES (hashtextextended(gen_random_uuid()::text, 0), hashtextextended(gen_random_uuid()::text, 0));

-- Hashes of lines. A cache: it may be emptied at any time.
CREATE TABLE line_hashes (
    file_no   bigint NOT NULL,
    lane_no   integer NOT NULL,
    part      integer NOT NULL,
    -- One element per line.
    hashes    bigint[] NOT NULL,
    proofs    bigint[] NOT NULL,
    ordinals  integer[] NOT NULL,
    line_nos  integer[] NOT NULL,
    PRIMARY KEY (file_no, lane_no, part)
);
-- Random numbers cannot be compressed.
ALTER TABLE line_hashes
    ALTER COLUMN hashes SET STORAGE EXTERNAL,
    ALTER COLUMN proofs SET STORAGE EXTERNAL,
    ALTER COLUMN ordinals SET STORAGE EXTERNAL,
    ALTER COLUMN line_nos SET STORAGE EXTERNAL;

-- Batches with answers that a later batch may take. Not: batches that are purged or will be, batches whose
-- output or input file is deleted or has expired, governed batches, and batches of asynchronous providers.
-- While a batch runs again, it has no output file, and a deleted file of an earlier end counts: its answers
-- were deleted. Its next output has them again, because its owner has retried it.
-- Whatever is not in the row is looked up by key: no plan can read all files.
CREATE VIEW reusable_batches AS
SELECT b.id, b.tenant, b.settings, b.created_at, b.completed = b.total AS complete
FROM batches AS b
WHERE b.submitted_by IS NULL
  AND b.purging_at IS NULL
  AND NOT b.settings ? 'provider'
  AND (
      b.completed > 0
      OR (SELECT c.completed > 0 FROM counters AS c WHERE c.batch_id = b.id ORDER BY c.seq DESC LIMIT 1)
  )
  AND (
      SELECT f.deleted_at IS NULL AND coalesce(f.expires_at > now(), true)
      FROM files AS f
      WHERE f.id = b.file_id
  )
  AND coalesce(
      (
          SELECT bool_and(f.deleted_at IS NULL AND coalesce(f.expires_at > now(), true))
          FROM files AS f
          WHERE f.id = ANY (
              CASE WHEN b.output_file_id IS NULL THEN b.earlier_files ELSE ARRAY[b.output_file_id] END
          )
      ),
      true
  );
"""

BACK = """
DROP VIEW reusable_batches;
DROP TABLE line_hashes, hash_seeds;
ALTER TABLE batches DROP COLUMN reused;
-- To older programs, every result has had an attempt.
UPDATE results SET attempt = 1 WHERE attempt = 0;
"""


# The view is taken as it is: what other migrations have added to it stays.
VIEW = "SELECT pg_get_viewdef('current_batches'::regclass)"
COLUMN, END = ",\n    b.reused", "\n   FROM "


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql(TABLES)
    view = bind.exec_driver_sql(VIEW).scalar_one()
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW current_batches AS {view.replace(END, COLUMN + END, 1)}")
    for name in FUNCTIONS:
        bind.exec_driver_sql(function(name, schema))


def downgrade() -> None:
    bind = op.get_bind()
    for name in reversed(FUNCTIONS):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    view = bind.exec_driver_sql(VIEW).scalar_one()
    bind.exec_driver_sql("DROP VIEW current_batches")
    bind.exec_driver_sql(f"CREATE VIEW current_batches AS {view.replace(COLUMN, '', 1)}")
    bind.exec_driver_sql(BACK)

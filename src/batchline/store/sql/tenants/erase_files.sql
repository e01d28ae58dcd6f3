-- erase_files: delete the rows of a chunk of files whose lines and objects are gone. Returns their number.
--
-- Not while a batch needs its input's row. Locks: their rows, skipping locked ones.
WITH
file AS (
    SELECT f.id
    FROM batchline.files AS f
    WHERE f.tenant = %(tenant)s
      AND f.purged_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id)
      AND EXISTS (SELECT FROM batchline.tenants AS t WHERE t.name = f.tenant AND t.erasing_at IS NOT NULL)
    ORDER BY f.created_at, f.id
    LIMIT %(chunk)s
    FOR UPDATE OF f SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.files AS f
    USING file
    WHERE f.id = file.id
    RETURNING 1
)
SELECT count(*)::integer FROM gone

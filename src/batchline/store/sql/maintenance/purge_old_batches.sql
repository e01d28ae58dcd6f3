-- purge_old_batches: start to purge a chunk of the batches that ended longer ago than `older_than`. Governed batches
-- have a separate retention: purge_old_operations. Returns the number of batches. Locks: their rows, skipping locked
-- ones.
WITH
old AS (
    SELECT id
    FROM batchline.batches
    WHERE ended_at < now() - %(older_than)s::interval AND purging_at IS NULL AND submitted_by IS NULL
    ORDER BY ended_at
    LIMIT %(chunk)s
    FOR NO KEY UPDATE SKIP LOCKED
),
begun AS (
    UPDATE batchline.batches AS b
    SET purging_at = now()
    FROM old
    WHERE b.id = old.id
    RETURNING 1
)
SELECT count(*)::integer FROM begun

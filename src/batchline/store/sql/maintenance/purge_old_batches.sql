-- purge_old_batches: start to purge a chunk of the batches that ended longer ago than `older_than`. Governed batches
-- have a separate retention: purge_old_operations. Adopted batches are kept until the adoption is finished: a rollback
-- needs their results. Returns the number of batches. Locks: their rows, skipping locked ones.
WITH
old AS (
    SELECT b.id
    FROM batchline.batches AS b
    WHERE b.ended_at < now() - %(older_than)s::interval
      AND b.purging_at IS NULL
      AND b.submitted_by IS NULL
      AND NOT EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = b.id)
    ORDER BY b.ended_at
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

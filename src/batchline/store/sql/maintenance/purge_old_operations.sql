-- purge_old_operations: start to purge a chunk of the governed batches that ended longer ago than `older_than`: the
-- items and results of their children, and the files of these. The batch rows remain, with counts, decisions and
-- request_id, and so does the audit log.
--
-- A retry that comes first reopens the batch, so it is no longer old. A later retry is refused, because the children
-- are gone. Returns the number of batches. Locks: their rows, skipping locked ones, then the rows of their files.
WITH
old AS (
    SELECT id, file_id, output_file_id, error_file_id
    FROM batchline.batches
    WHERE ended_at < now() - %(older_than)s::interval AND purging_at IS NULL AND submitted_by IS NOT NULL
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
),
deleted AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM old
    WHERE f.id IN (old.file_id, old.output_file_id, old.error_file_id) AND f.deleted_at IS NULL
)
SELECT count(*)::integer FROM begun

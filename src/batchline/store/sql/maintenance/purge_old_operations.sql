-- purge_old_operations: begin to clear away what governed batches that ended long ago have left behind: their children's
-- items and results, and the files of these; a chunk of batches. Their own rows stay, with counts, decisions and
-- request_id, and so does all that the audit log says of them.
--
-- A retry that comes first opens the batch again, and it is not old any more; one that comes later is told that the
-- children are gone. Returns how many batches. Locks: their rows, skipping locked ones, then those of their files.
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

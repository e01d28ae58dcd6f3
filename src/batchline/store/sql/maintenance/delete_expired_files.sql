-- delete_expired_files: mark a chunk of expired files as deleted. Returns their number.
--
-- Locks: their rows FOR UPDATE, like delete_file, skipping files over which a batch is being created.
WITH
expired AS (
    SELECT id
    FROM batchline.files
    WHERE expires_at <= now() AND deleted_at IS NULL
    ORDER BY expires_at
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM expired
    WHERE f.id = expired.id
    RETURNING 1
)
SELECT count(*)::integer FROM deleted

-- delete_expired_files: delete a chunk of the files whose time is over. Returns how many.
--
-- Locks: their rows FOR UPDATE as delete_file does, skipping those that somebody makes a batch over right now.
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

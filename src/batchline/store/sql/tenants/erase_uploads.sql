-- erase_uploads: delete a chunk of ended uploads of a tenant that have no parts left. Returns their number. Locks: their rows,
-- skipping locked ones: one that is being completed fails, because its tenant is being erased.
WITH
ended AS (
    SELECT u.id
    FROM batchline.uploads AS u
    WHERE u.tenant = %(tenant)s
      AND (u.completed_at IS NOT NULL OR u.cancelled_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM batchline.upload_parts AS p WHERE p.upload_id = u.id)
    ORDER BY u.id
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.uploads AS u
    USING ended
    WHERE u.id = ended.id
    RETURNING 1
)
SELECT count(*)::integer FROM gone

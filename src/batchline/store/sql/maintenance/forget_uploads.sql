-- forget_uploads: delete a chunk of uploads that expired longer ago than `older_than` and have no parts left. Returns
-- their number.
WITH
old AS (
    SELECT u.id
    FROM batchline.uploads AS u
    WHERE u.expires_at < now() - %(older_than)s::interval
      AND NOT EXISTS (SELECT FROM batchline.upload_parts AS p WHERE p.upload_id = u.id)
    ORDER BY u.expires_at
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM batchline.uploads AS u
    USING old
    WHERE u.id = old.id
    RETURNING 1
)
SELECT count(*)::integer FROM gone

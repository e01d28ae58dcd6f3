-- release_uploads: give back what a chunk of expired uploads has reserved. A request that began to complete an upload before
-- it expired may take `grace`. Returns their number. Locks: their rows, skipping locked ones.
WITH
expired AS (
    SELECT id
    FROM batchline.uploads
    WHERE expires_at < now() - %(grace)s::interval AND charged > 0
    ORDER BY expires_at
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
released AS (
    UPDATE batchline.uploads AS u
    SET charged = 0
    FROM expired
    WHERE u.id = expired.id
    RETURNING 1
)
SELECT count(*)::integer FROM released

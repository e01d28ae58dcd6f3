-- forget_windows: minutes that are over. Done by whoever begins to count in a new one. Locks: those rows, skipping locked
-- ones.
DELETE FROM batchline.api_windows
WHERE (starts_at, kind, tenant, user_id) IN (
    SELECT starts_at, kind, tenant, user_id
    FROM batchline.api_windows
    WHERE starts_at < now() - interval '10 minutes'
    FOR UPDATE SKIP LOCKED
)

-- forget_windows: delete request counters of past minutes. The first request of a user in a new minute runs it. Locks:
-- those rows, skipping locked ones.
DELETE FROM batchline.api_windows
WHERE (starts_at, kind, tenant, user_id) IN (
    SELECT starts_at, kind, tenant, user_id
    FROM batchline.api_windows
    WHERE starts_at < now() - interval '10 minutes'
    FOR UPDATE SKIP LOCKED
)

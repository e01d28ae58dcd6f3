-- drop_old_hook_deliveries: delete one chunk of ended deliveries that are older than `seconds`. Returns their number.
-- Locks: these rows, skipping locked ones.
WITH gone AS (
    DELETE FROM batchline.hook_deliveries
    WHERE (hook, event_id) IN (
        SELECT hook, event_id
        FROM batchline.hook_deliveries
        WHERE created_at < now() - make_interval(secs => %(seconds)s)
          AND (delivered_at IS NOT NULL OR failed_at IS NOT NULL)
        ORDER BY created_at
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    )
    RETURNING event_id
)
SELECT count(*) FROM gone

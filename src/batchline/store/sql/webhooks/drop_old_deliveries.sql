-- drop_old_deliveries: delete one chunk of ended deliveries that are older than `seconds`. Returns their number.
WITH gone AS (
    DELETE FROM batchline.deliveries
    WHERE (webhook_id, event_id) IN (
        SELECT webhook_id, event_id
        FROM batchline.deliveries
        WHERE created_at < now() - make_interval(secs => %(seconds)s)
          AND (delivered_at IS NOT NULL OR failed_at IS NOT NULL)
        ORDER BY created_at
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    )
    RETURNING event_id
)
SELECT count(*) FROM gone

-- list_hook_deliveries: deliveries to hooks, newest first, of all batches or of one. Locks: none.
(
    SELECT d.*
    FROM batchline.hook_deliveries AS d
    WHERE %(batch)s::uuid IS NULL
    ORDER BY d.created_at DESC, d.event_id DESC, d.hook DESC
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT d.*
    FROM batchline.hook_deliveries AS d
    WHERE d.batch_id = %(batch)s::uuid
    ORDER BY d.created_at DESC, d.event_id DESC, d.hook DESC
    LIMIT %(limit)s
)

-- take_hook_delivery: lease the delivery to one of these hooks that has been due longest, for `lease` seconds; only of one
-- `batch` if that is given. After the lease it is due again: its process has died. So a delivery is run by one process
-- at a time, and at least once. Other hooks' deliveries stay for the workers that have those hooks.
--
-- Locks: the delivery, skipping locked ones.
UPDATE batchline.hook_deliveries AS d
SET attempts = d.attempts + 1,
    available_at = now() + make_interval(secs => %(lease)s),
    running_until = now() + make_interval(secs => %(lease)s)
FROM (
    SELECT due.hook, due.event_id
    FROM unnest(%(hooks)s::text[]) AS h (name)
    CROSS JOIN LATERAL (
        SELECT o.hook, o.event_id
        FROM batchline.hook_deliveries AS o
        WHERE o.hook = h.name
          AND o.delivered_at IS NULL
          AND o.failed_at IS NULL
          AND o.available_at <= now()
          AND (%(batch)s::uuid IS NULL OR o.batch_id = %(batch)s::uuid)
        ORDER BY o.available_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS due
    LIMIT 1
) AS first
WHERE d.hook = first.hook AND d.event_id = first.event_id
RETURNING d.hook, d.event_id, d.batch_id, d.type, d.occurred_at, d.attempts

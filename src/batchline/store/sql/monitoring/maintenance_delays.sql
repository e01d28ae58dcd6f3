-- maintenance_delays: by how many seconds the work is overdue that any worker does besides lines and files: maintenance tasks,
-- steps of batches, actions on many batches, events and webhooks; 0: it is not due yet. `pending`: it cannot wait for a worker
-- that starts because of other work.
--
-- Cost: the maintenance tasks, and one probe of a partial index for each other kind. Locks: none.
SELECT name, greatest(extract(epoch FROM now() - due_at), 0)::float8 AS seconds, pending
FROM (
    SELECT
        t.name,
        t.due_at,
        t.name = 'erasure' AND EXISTS (SELECT FROM batchline.tenants WHERE erasing_at IS NOT NULL) AS pending
    FROM batchline.maintenance_tasks AS t
    UNION ALL
    SELECT 'steps', min(next_step_at), coalesce(min(next_step_at) <= now(), false)
    FROM batchline.batches
    WHERE next_step_at IS NOT NULL
      AND finalizing_at IS NULL AND paused_at IS NULL AND held_at IS NULL
      AND cancelling_at IS NULL AND expiring_at IS NULL
    UNION ALL
    -- Also while a worker has it: then `due_at` is in the future.
    SELECT 'actions', min(due_at), min(due_at) IS NOT NULL FROM batchline.bulk_actions WHERE ended_at IS NULL
    UNION ALL
    SELECT 'events', min(available_at), coalesce(min(available_at) <= now(), false)
    FROM batchline.outbox
    WHERE delivered_at IS NULL
    UNION ALL
    SELECT 'webhooks', min(due_at), coalesce(min(due_at) <= now(), false)
    FROM batchline.webhooks
    WHERE due_at IS NOT NULL
) AS work
ORDER BY name

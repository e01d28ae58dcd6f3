-- list_schedules: all schedules of a tenant, by name. `operation` is the url of the last batch's operation; null if there is
-- no such batch, or not any more. `now`: the time of the database. Locks: none.
SELECT
    s.name,
    s.definition,
    s.due_at,
    s.available_at,
    s.attempts,
    s.last_error,
    s.last_at,
    s.last_batch_id,
    b.endpoint AS operation,
    now() AS now
FROM batchline.schedules AS s
LEFT JOIN batchline.batches AS b ON b.id = s.last_batch_id AND b.tenant = s.tenant
WHERE s.tenant = %(tenant)s
ORDER BY s.name

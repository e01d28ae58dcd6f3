-- list_schedules: all schedules of a tenant, by name. Locks: none.
SELECT s.name, s.definition, s.due_at, s.available_at, s.attempts, s.last_error, s.last_at, s.last_batch_id
FROM batchline.schedules AS s
WHERE s.tenant = %(tenant)s
ORDER BY s.name

-- release_schedules: the schedules of a tenant that come due within `seconds` are due now. One that is tried again later, or that
-- a worker runs, has another `available_at` than `due_at`, and waits. For tests only. Locks: these rows.
UPDATE batchline.schedules
SET available_at = now()
WHERE tenant = %(tenant)s
  AND available_at = due_at
  AND available_at > now()
  AND available_at <= now() + make_interval(secs => %(seconds)s)
RETURNING 1

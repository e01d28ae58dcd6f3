-- put_off_schedule: the attempt has failed. The schedule is due again after `delay` seconds. The fence is that of
-- advance_schedule. Locks: the row.
UPDATE batchline.schedules
SET available_at = now() + make_interval(secs => %(delay)s),
    last_error = %(error)s,
    updated_at = now()
WHERE tenant = %(tenant)s
  AND name = %(name)s
  AND definition = %(definition)s
  AND due_at = %(due)s
  AND attempts = %(attempt)s
RETURNING 1

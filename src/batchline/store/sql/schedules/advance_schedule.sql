-- advance_schedule: `at` becomes `batch`, or needs none, and the schedule is due next at `following`. In the transaction that
-- creates the batch, before it: so of two workers one finds another due time and creates nothing, and a crash before
-- the commit does neither. `due` and `attempt` are the fence: without a row, another worker has taken the schedule, or
-- has advanced it. Returns the seconds until it is due.
--
-- Locks: the row, until the transaction ends. Only a register with another definition waits for it.
UPDATE batchline.schedules
SET due_at = %(following)s,
    available_at = %(following)s,
    attempts = 0,
    last_error = NULL,
    last_at = %(at)s,
    last_batch_id = %(batch)s,
    updated_at = now()
WHERE tenant = %(tenant)s
  AND name = %(name)s
  AND definition = %(definition)s
  AND due_at = %(due)s
  AND attempts = %(attempt)s
RETURNING extract(epoch FROM available_at - now())::float8

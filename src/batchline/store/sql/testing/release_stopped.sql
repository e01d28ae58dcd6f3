-- release_stopped: items whose next attempt is due by a stopped clock may run now. The times from `first` to `last` stand for
-- those of that clock. For tests only. Locks: these spans.
UPDATE batchline.spans
SET available_at = now()
WHERE worker_id IS NULL
  AND available_at BETWEEN %(first)s AND %(last)s
RETURNING 1

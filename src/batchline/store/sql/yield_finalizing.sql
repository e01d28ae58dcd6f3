-- yield_finalizing: a finalizer that could not finish (the object store is full, it was told to stop)
-- lets another try.
UPDATE batches SET finalizer = NULL WHERE id = %(batch)s AND finalizer = %(worker)s AND ended_at IS NULL

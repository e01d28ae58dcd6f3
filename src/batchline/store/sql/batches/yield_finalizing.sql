-- yield_finalizing: release a batch when its finalizer stops, so that another one can try at once.
UPDATE batchline.batches SET finalizer = NULL WHERE id = %(batch)s AND finalizer = %(worker)s AND ended_at IS NULL

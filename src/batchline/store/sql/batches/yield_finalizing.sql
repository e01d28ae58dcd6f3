-- yield_finalizing: a finalizer that was told to stop lets another one try, at once.
UPDATE batchline.batches SET finalizer = NULL WHERE id = %(batch)s AND finalizer = %(worker)s AND ended_at IS NULL

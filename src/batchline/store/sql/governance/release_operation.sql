-- release_operation: mark a batch as released, so no more lines can be appended. Runs under lock_operation. Repeating
-- it does nothing.
UPDATE batchline.operation_batches
SET held = false, released_at = clock_timestamp()
WHERE batch_id = %(batch)s AND held

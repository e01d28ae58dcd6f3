-- release_operation: no more lines will be appended. Under lock_operation. Again: nothing.
UPDATE batchline.operation_batches
SET held = false, released_at = clock_timestamp()
WHERE batch_id = %(batch)s AND held

-- cancelled_by: who cancelled a governed batch. Under lock_operation.
UPDATE batchline.operation_batches SET cancelled_by = %(actor)s WHERE batch_id = %(batch)s

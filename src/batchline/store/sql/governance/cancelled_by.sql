-- cancelled_by: record who cancelled a governed batch. Runs under lock_operation.
UPDATE batchline.operation_batches SET cancelled_by = %(actor)s WHERE batch_id = %(batch)s

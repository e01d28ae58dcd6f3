-- decide_operation: record an approval or a rejection, with its author and reason. Runs under lock_operation, after the
-- caller has checked that the batch is pending.
UPDATE batchline.operation_batches
SET approval = %(approval)s,
    decided_by = %(actor)s,
    decided_at = clock_timestamp(),
    decision_reason = %(reason)s
WHERE batch_id = %(batch)s AND approval = 'pending'
RETURNING batch_id

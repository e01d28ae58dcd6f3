-- decide_operation: an approval or a rejection, by whom and why. Under lock_operation, which has seen it pending.
UPDATE batchline.operation_batches
SET approval = %(approval)s,
    decided_by = %(actor)s,
    decided_at = clock_timestamp(),
    decision_reason = %(reason)s
WHERE batch_id = %(batch)s AND approval = 'pending'
RETURNING batch_id

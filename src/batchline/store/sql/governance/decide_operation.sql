-- decide_operation: record an approval or a rejection, with its author, its reason and the digest of what it is about. Runs under lock_operation, after the
-- caller has checked that the batch is pending.
UPDATE batchline.operation_batches
SET approval = %(approval)s,
    decided_by = %(actor)s,
    decided_at = clock_timestamp(),
    decision_reason = %(reason)s,
    decided_digest = %(digest)s
WHERE batch_id = %(batch)s AND approval = 'pending'
RETURNING batch_id

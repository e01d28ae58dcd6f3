-- lock_operation: as get_operation, and nobody changes it until the transaction ends. What comes next in the transaction
-- sees all that was committed before the lock was had.
--
-- Locks: the batch row, as close and settle take it, then its row in operation_batches.
SELECT
    b.id,
    b.tenant,
    o.user_id,
    o.operation,
    o.request_id,
    o.reason,
    o.approval,
    o.decided_by,
    o.decided_at,
    o.decision_reason,
    o.held,
    o.released_at,
    o.retries,
    o.retried_at,
    b.total,
    b.completed,
    b.failed,
    o.created_at,
    b.expires_at,
    b.paused_at,
    b.cancelling_at,
    b.expiring_at,
    b.finalizing_at,
    b.ended_at
FROM batches AS b
JOIN operation_batches AS o ON o.batch_id = b.id
WHERE b.id = %(batch)s AND b.tenant = %(tenant)s
FOR NO KEY UPDATE OF b, o

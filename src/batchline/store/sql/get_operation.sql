-- get_operation: a governed batch as its tenant sees it, by primary key. Locks: none, so a status never waits.
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

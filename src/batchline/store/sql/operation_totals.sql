-- operation_totals: children by operation and what became of them, over all workers there ever were: batches count
-- their own, and what was put back to be tried again had ended before. Never less than the last time.
SELECT
    o.operation,
    sum(b.completed)::bigint AS succeeded,
    sum(b.failed + o.retried_children)::bigint AS failed,
    sum(CASE WHEN b.finalizing_at IS NULL THEN 0 ELSE b.total - b.completed - b.failed END)::bigint AS cancelled
FROM operation_batches AS o
JOIN batches AS b ON b.id = o.batch_id
GROUP BY o.operation
ORDER BY o.operation

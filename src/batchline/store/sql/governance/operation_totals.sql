-- operation_totals: children by operation and what became of them, over all workers there ever were: what ended batches
-- have added to the totals, and what those that have not ended are yet to add. Never less than the last time: one snapshot
-- sees a batch on one side or the other.
--
-- Cost: a row for each operation, and one for each batch that has not ended, by a partial index. Locks: none.
SELECT
    operation,
    sum(succeeded)::bigint AS succeeded,
    sum(failed)::bigint AS failed,
    sum(cancelled)::bigint AS cancelled
FROM (
    SELECT operation, succeeded, failed, cancelled FROM batchline.operation_totals
    UNION ALL
    SELECT
        o.operation,
        b.completed - o.counted_succeeded,
        b.failed + o.retried_children - o.counted_failed,
        CASE WHEN b.finalizing_at IS NULL THEN 0 ELSE b.total - b.completed - b.failed END
    FROM batchline.operation_batches AS o
    CROSS JOIN LATERAL (
        SELECT * FROM batchline.current_batches WHERE current_batches.id = o.batch_id LIMIT 1
    ) AS b
    WHERE o.counted_at IS NULL
) AS part
GROUP BY operation
ORDER BY operation

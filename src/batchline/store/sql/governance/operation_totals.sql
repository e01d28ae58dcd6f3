-- operation_totals: children by operation and outcome, over all workers since the beginning: what ended batches have
-- added to the totals, plus what other batches have not added yet. A total never goes down, because one snapshot sees
-- each batch on exactly one side.
--
-- Cost: one row per operation, and one per batch that has not ended, by a partial index. Locks: none.
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

-- batch_lanes: where the lines of a batch lie, and what became of those that have no result.
--
-- `ending` is NULL while the batch may still give such a line a result: only a batch that was cancelled or
-- has expired and is frozen (finalizing_at) has lines that never ran. Locks: none.
SELECT
    n.id,
    n.file_no,
    n.lane_no,
    CASE
        WHEN b.finalizing_at IS NULL THEN NULL
        WHEN b.cancelling_at IS NOT NULL THEN 'batch_cancelled'
        WHEN b.expiring_at IS NOT NULL THEN 'batch_expired'
    END AS ending
FROM batchline.batches AS b
JOIN batchline.lanes AS n ON n.batch_id = b.id
WHERE b.id = %(batch)s
ORDER BY n.lane_no

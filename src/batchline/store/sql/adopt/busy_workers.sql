-- busy_workers: workers of ours that hold items of adopted batches, or write their files, under a lease that has not
-- expired. Locks: none.
SELECT w.name, sum(busy.items)::integer
FROM (
    SELECT s.worker_id, batchline.span_size(s.outstanding) AS items
    FROM batchline.spans AS s
    JOIN batchline.adopted_lanes AS n ON n.lane_id = s.lane_id
    WHERE s.worker_id IS NOT NULL
    UNION ALL
    SELECT b.finalizer, 0
    FROM batchline.adopted_batches AS a
    JOIN batchline.batches AS b ON b.id = a.batch_id
    WHERE b.finalizer IS NOT NULL AND b.ended_at IS NULL
) AS busy
JOIN batchline.workers AS w ON w.id = busy.worker_id
WHERE w.lease_until >= now()
GROUP BY w.name
ORDER BY w.name

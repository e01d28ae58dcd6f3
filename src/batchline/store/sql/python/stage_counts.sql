-- stage_counts: the lanes of a batch, in their order, and how many items of each are in which state.
--
-- `ended`: the batch was cancelled or has expired, and is frozen. Then completed items are counted, because the cursor has
-- passed items that never ran. Else they are what is left: to count a million takes too long. Failed ones are counted by
-- their index. Locks: none.
SELECT
    n.url,
    n.total,
    n.next,
    coalesce(held.items, 0)::integer AS held,
    coalesce(held.retrying, 0)::integer AS retrying,
    coalesce(held.returned, 0)::integer AS returned,
    failed.items AS failed,
    coalesce(completed.items, n.next - coalesce(held.items, 0) - failed.items)::integer AS completed
FROM batchline.current_lanes AS n
LEFT JOIN (
    SELECT
        s.lane_id,
        sum(batchline.span_size(s.outstanding)) AS items,
        sum(batchline.span_size(s.outstanding)) FILTER (
            WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at > now()
        ) AS retrying,
        sum(batchline.span_size(s.outstanding)) FILTER (
            WHERE s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at <= now()
        ) AS returned
    FROM batchline.spans AS s
    WHERE s.batch_id = %(batch)s
    GROUP BY s.lane_id
) AS held ON held.lane_id = n.id
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS items FROM batchline.results AS r WHERE r.lane_id = n.id AND r.outcome = 'failed'
) AS failed
LEFT JOIN LATERAL (
    SELECT count(*) AS items FROM batchline.results AS r WHERE r.lane_id = n.id AND r.outcome = 'completed'
) AS completed ON %(ended)s::boolean
WHERE n.batch_id = %(batch)s
ORDER BY n.lane_no

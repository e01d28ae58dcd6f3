-- lane_counts: the lanes of a batch, up to `limit`, and how many items of each are in which state. Failed ones are counted up to
-- `max_failed`: beyond that, the rest counts as completed (`capped`).
--
-- Cost: the lanes and spans of the batch, and the index entries of failed results up to the limit. Locks: none.
SELECT
    n.model,
    n.total,
    n.next,
    coalesce(held.in_flight, 0)::integer AS in_flight,
    coalesce(held.retrying, 0)::integer AS retrying,
    coalesce(held.returned, 0)::integer AS returned,
    failed.items AS failed,
    failed.items >= %(max_failed)s AS capped
FROM (
    SELECT * FROM batchline.current_lanes AS c WHERE c.batch_id = %(batch)s ORDER BY c.id LIMIT %(limit)s
) AS n
LEFT JOIN (
    SELECT
        s.lane_id,
        sum(batchline.span_size(s.outstanding)) FILTER (WHERE s.worker_id IS NOT NULL OR s.task_id IS NOT NULL) AS in_flight,
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
    SELECT count(*)::integer AS items
    FROM (
        SELECT
        FROM batchline.results AS r
        WHERE r.lane_id = n.id AND r.outcome = 'failed'
        LIMIT %(max_failed)s
    ) AS one
) AS failed
ORDER BY n.id

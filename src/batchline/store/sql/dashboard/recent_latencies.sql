-- recent_latencies: how long upstreams have taken for the newest results of lanes that workers hold, by routing key: median and 95th
-- percentile in milliseconds.
--
-- At most 20 lanes with the most items in flight, and the last 50 lines of each that have a result. Lines run in order, so these
-- are recent. Cost: the spans of live workers, and 1,000 results by key. Locks: none.
SELECT
    lane.key,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY result.upstream_seconds) * 1000 AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY result.upstream_seconds) * 1000 AS p95
FROM (
    SELECT n.id, n.key, sum(
        -- One piece, as most spans have, is counted without unnesting it.
        CASE
            WHEN s.outstanding = int4multirange(range_merge(s.outstanding)) THEN upper(s.outstanding) - lower(s.outstanding)
            ELSE batchline.span_size(s.outstanding)
        END
    ) AS items
    FROM batchline.workers AS w
    CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.worker_id = w.id) AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    WHERE w.lease_until >= now() AND n.tenant = %(tenant)s
    GROUP BY n.id, n.key
    ORDER BY items DESC
    LIMIT 20
) AS lane
CROSS JOIN LATERAL (
    SELECT r.upstream_seconds
    FROM batchline.results AS r
    WHERE r.lane_id = lane.id
    ORDER BY r.line_no DESC
    LIMIT 50
) AS result
WHERE result.upstream_seconds IS NOT NULL
GROUP BY lane.key

-- near_deadline: batches with unfinished lines whose deadline is nearer than `seconds`, and the routing keys of these lines: first those
-- of which lines wait now, then by deadline. For an upstream that takes only such lines. No locks.
--
-- Lines that are in flight or wait for another try count, too: they may be given back at any time.
-- Looks at the 1,000 batches with the nearest deadlines that have not passed, by their index, and at the lanes of each.
SELECT near.id AS batch_id, lane.key
FROM (
    SELECT b.id, b.expires_at
    FROM batchline.batches AS b
    WHERE b.finalizing_at IS NULL
      AND b.ended_at IS NULL
      AND b.expires_at > now()
      AND b.expires_at < now() + make_interval(secs => %(seconds)s::float8)
    ORDER BY b.expires_at
    LIMIT 1000
) AS near
CROSS JOIN LATERAL (
    SELECT n.key, bool_or(NOT n.drained OR free.at <= now()) AS waits
    FROM batchline.lanes AS n
    LEFT JOIN LATERAL (
        SELECT s.available_at AS at
        FROM batchline.spans AS s
        WHERE n.drained AND s.lane_id = n.id AND s.worker_id IS NULL
        ORDER BY s.available_at
        LIMIT 1
    ) AS free ON true
    WHERE n.batch_id = near.id
      AND n.open
      AND n.deadline > now()
      AND batchline.in_scope_v1(n.key, %(keys)s::text[], %(excluded)s::text[], NULL)
      AND (
          NOT n.drained
          OR EXISTS (SELECT FROM batchline.spans AS s WHERE s.batch_id = near.id AND s.lane_id = n.id)
      )
    GROUP BY n.key
) AS lane
ORDER BY lane.waits DESC NULLS LAST, near.expires_at, near.id, lane.key
LIMIT 32

-- returned_lanes: open lanes of this scope with lines that were claimed before and can be claimed again: in a free span that
-- is due, or in a span of one of the `expired` workers. Not those of the batches in `without`. The span of a provider's chunk does not
-- count: a relay takes it over (take_chunks), and claim_returned leaves it alone. A free one is never due.
--
-- No locks. Cost: one index probe for each lane that has free spans, however many these are; for one batch, one for each of
-- its lanes.
CREATE FUNCTION batchline.returned_lanes_v2(
    keys text[], excluded text[], below text[], batch uuid, expired uuid[],
    without uuid[] DEFAULT '{}'
) RETURNS TABLE (lane_id bigint)
LANGUAGE sql STABLE
AS $$
WITH RECURSIVE
-- A loose index scan: each lane's first free span, then the next lane.
free AS (
    (
        SELECT s.lane_id, s.available_at
        FROM batchline.spans AS s
        WHERE s.worker_id IS NULL AND batch IS NULL
        ORDER BY s.lane_id, s.available_at
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM free
    CROSS JOIN LATERAL (
        SELECT s.lane_id, s.available_at
        FROM batchline.spans AS s
        WHERE s.worker_id IS NULL AND s.lane_id > free.lane_id
        ORDER BY s.lane_id, s.available_at
        LIMIT 1
    ) AS following
),
candidate AS (
    SELECT free.lane_id FROM free WHERE free.available_at <= now()
    UNION
    SELECT s.lane_id
    FROM batchline.spans AS s
    WHERE s.worker_id = ANY (expired) AND (s.task_id IS NULL OR NOT starts_with(s.task_id, 'chunk:'))
    UNION
    SELECT n.id
    FROM batchline.lanes AS n
    CROSS JOIN LATERAL (
        SELECT
        FROM batchline.spans AS s
        WHERE s.worker_id IS NULL AND s.lane_id = n.id AND s.available_at <= now()
        LIMIT 1
    ) AS due
    WHERE n.batch_id = batch
)
SELECT n.id
FROM candidate
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = candidate.lane_id LIMIT 1) AS n
WHERE n.open
  AND n.deadline > now()
  AND (batch IS NULL OR n.batch_id = batch)
  AND n.batch_id <> ALL (without)
  AND batchline.in_scope_v1(n.key, keys, excluded, below)
$$;

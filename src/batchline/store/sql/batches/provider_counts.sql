-- provider_counts: by upstream, the lines that providers work on, and those that a provider may have accepted without an
-- answer. `keys`, `excluded`, `below` and `batch` narrow the scope, as in claim.
--
-- Cost: one index entry per task. Locks: none.
SELECT
    n.key AS upstream,
    sum(known.items) FILTER (WHERE known.state = 'processing')::bigint AS processing,
    sum(known.items) FILTER (WHERE known.state = 'submission_unknown')::bigint AS submission_unknown
FROM (
    SELECT s.lane_id, s.batch_id, 'processing' AS state, batchline.span_size(s.outstanding) AS items
    FROM batchline.spans AS s
    -- A chunk that is held has a task, and counts as unknown.
    WHERE s.task_id IS NOT NULL AND s.submission IS NULL
    UNION ALL
    SELECT s.lane_id, s.batch_id, 'submission_unknown', batchline.span_size(s.outstanding)
    FROM batchline.spans AS s
    WHERE s.submission = 'unknown' AND s.worker_id IS NULL
) AS known
JOIN batchline.lanes AS n ON n.id = known.lane_id
WHERE (%(batch)s::uuid IS NULL OR known.batch_id = %(batch)s::uuid)
  AND batchline.in_scope_v1(n.key, %(keys)s::text[], %(excluded)s::text[], %(below)s::text[])
GROUP BY n.key
ORDER BY n.key

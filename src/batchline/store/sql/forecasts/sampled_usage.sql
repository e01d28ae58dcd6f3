-- sampled_usage: what the finished lines of a batch have used, and how many seconds after its sample was drawn each of them
-- was done. Reused answers (attempt 0) have used nothing, and say nothing of the rest. No locks.
SELECT
    n.model,
    coalesce(r.input_tokens, 0) AS input_tokens,
    coalesce(r.output_tokens, 0) AS output_tokens,
    extract(epoch FROM r.finished_at - b.step_began_at)::float8 AS seconds
FROM batchline.batches AS b
JOIN batchline.lanes AS n ON n.batch_id = b.id
CROSS JOIN LATERAL (
    SELECT * FROM batchline.results WHERE results.lane_id = n.id AND results.attempt > 0 LIMIT %(limit)s
) AS r
WHERE b.id = %(batch)s
LIMIT %(limit)s

-- learned_usage: what recent requests of each model have used, of a tenant: requests, bytes of their bodies, tokens of input
-- and output. At most 20 lanes and 200 results of each, among its first 1,000. Batches without reused answers, which have used
-- nothing, come first. No locks.
SELECT
    wanted.model,
    count(*)::integer AS requests,
    sum(octet_length(l.body))::bigint AS bytes,
    sum(r.input_tokens)::bigint AS input_tokens,
    sum(r.output_tokens)::bigint AS output_tokens
FROM unnest(%(models)s::text[]) AS wanted (model)
CROSS JOIN LATERAL (
    SELECT n.id, n.file_no, n.lane_no
    FROM batchline.lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    WHERE n.model = wanted.model AND n.tenant = %(tenant)s
    ORDER BY b.reused > 0, n.id DESC
    LIMIT 20
) AS lane
CROSS JOIN LATERAL (
    SELECT each.ordinal, each.input_tokens, each.output_tokens
    FROM (
        SELECT * FROM batchline.results WHERE results.lane_id = lane.id ORDER BY lane_id, line_no LIMIT 1000
    ) AS each
    WHERE each.outcome = 'completed' AND each.input_tokens > 0
    LIMIT 200
) AS r
JOIN batchline.lines AS l ON l.file_no = lane.file_no AND l.lane_no = lane.lane_no AND l.ordinal = r.ordinal
GROUP BY wanted.model

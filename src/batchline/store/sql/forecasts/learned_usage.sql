-- learned_usage: what recent requests of each model have used, of a tenant: requests, bytes of their bodies, tokens of input
-- and output. At most 20 lanes of a model, 200 together, and 200 results of each, among its first 1,000. Batches without
-- reused answers, which have used nothing, come first. No locks.
--
-- Cost: one probe for each of the tenant's newest 1,000 batches, by batches_newest, however many there are.
WITH
newest AS MATERIALIZED (
    SELECT b.id, b.reused
    FROM batchline.batches AS b
    WHERE b.tenant = %(tenant)s
    ORDER BY b.tenant DESC, b.created_at DESC, b.id DESC
    LIMIT 1000
),
lane AS (
    SELECT
        n.id,
        n.file_no,
        n.lane_no,
        n.model,
        row_number() OVER (PARTITION BY n.model ORDER BY newest.reused > 0, n.id DESC) AS nth
    FROM newest
    JOIN batchline.lanes AS n ON n.batch_id = newest.id
    WHERE n.model = ANY (%(models)s::text[])
),
chosen AS MATERIALIZED (
    SELECT lane.* FROM lane WHERE lane.nth <= 20 ORDER BY lane.nth LIMIT 200
)
SELECT
    lane.model,
    count(*)::integer AS requests,
    sum(octet_length(l.body))::bigint AS bytes,
    sum(r.input_tokens)::bigint AS input_tokens,
    sum(r.output_tokens)::bigint AS output_tokens
FROM chosen AS lane
CROSS JOIN LATERAL (
    SELECT each.ordinal, each.input_tokens, each.output_tokens
    FROM (
        SELECT * FROM batchline.results WHERE results.lane_id = lane.id ORDER BY lane_id, line_no LIMIT 1000
    ) AS each
    WHERE each.outcome = 'completed' AND each.input_tokens > 0
    LIMIT 200
) AS r
JOIN batchline.lines AS l ON l.file_no = lane.file_no AND l.lane_no = lane.lane_no AND l.ordinal = r.ordinal
GROUP BY lane.model

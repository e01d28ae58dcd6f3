-- verify_counts: for each adopted batch, its requests by state in the old tables, its counters here, and how many finished
-- requests have no result of the same outcome, or items have a result although their request is unfinished (`since`: they
-- finished after the cutover).
--
-- One pass over the old requests. Locks: none.
WITH
tally AS (
    SELECT
        b.batch_id,
        count(*) FILTER (WHERE r.state = 'completed') AS completed,
        count(*) FILTER (WHERE r.state = 'failed') AS failed,
        count(*) FILTER (WHERE r.state = 'canceled') AS canceled,
        count(*) FILTER (WHERE r.state IN ('pending', 'claimed', 'processing')) AS unfinished,
        count(*) FILTER (
            WHERE r.state IN ('completed', 'failed') AND res.outcome::text IS DISTINCT FROM r.state
        ) AS missing,
        count(res.line_no) FILTER (WHERE r.state IN ('completed', 'failed')) AS adopted,
        count(res.line_no) FILTER (WHERE r.state = 'canceled') AS canceled_alone,
        count(res.line_no) FILTER (WHERE r.state IN ('pending', 'claimed', 'processing')) AS since
    FROM batchline.adopted_batches AS b
    JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id AND a.file_no = b.file_no
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
    LEFT JOIN batchline.results AS res ON res.lane_id = n.lane_id AND res.line_no = a.line_no
    WHERE b.reason IS NULL
    GROUP BY b.batch_id
)
SELECT
    t.batch_id,
    t.completed::integer,
    t.failed::integer,
    t.canceled::integer,
    t.unfinished::integer,
    made.total,
    made.completed,
    made.failed,
    t.missing::integer,
    (t.adopted + t.canceled_alone)::integer,
    t.since::integer
FROM tally AS t
LEFT JOIN batchline.current_batches AS made ON made.id = t.batch_id
ORDER BY t.batch_id

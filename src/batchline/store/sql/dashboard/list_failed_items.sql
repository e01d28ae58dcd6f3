-- list_failed_items: items of a batch that have failed, or those of one `cause`, in the order of its lanes, after a position (a lane
-- and a line number there), by words in the custom_id.
--
-- Looks at no more than `chunk` failed results, of no more than 200 lanes. If there are so many, the last row is the last of them
-- with `matches` false: the next page continues there.
-- Cost: one range of results_failed per lane, and one line by key for each. Locks: none.
WITH
lane AS MATERIALIZED (
    SELECT n.id, n.file_no, n.lane_no
    FROM batchline.lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    WHERE n.batch_id = %(batch)s AND b.purging_at IS NULL AND n.id >= %(after_lane)s
    ORDER BY n.id
    LIMIT 200
),
result AS MATERIALIZED (
    SELECT lane.id AS lane_id, lane.file_no, lane.lane_no, each.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT r.line_no, r.ordinal, r.attempt, r.cause, r.status_code, r.upstream_seconds, r.finished_at
        FROM batchline.results AS r
        WHERE r.lane_id = lane.id
          AND r.outcome = 'failed'
          AND r.line_no > CASE WHEN lane.id = %(after_lane)s THEN %(after)s::integer ELSE -1 END
        ORDER BY r.line_no
        LIMIT %(chunk)s
    ) AS each
    ORDER BY lane.id, each.line_no
    LIMIT %(chunk)s
),
found AS (
    SELECT r.*, l.custom_id
    FROM result AS r
    CROSS JOIN LATERAL (
        SELECT lines.custom_id
        FROM batchline.lines
        WHERE lines.file_no = r.file_no AND lines.lane_no = r.lane_no AND lines.ordinal = r.ordinal
        LIMIT 1
    ) AS l
    WHERE (%(cause)s::text IS NULL OR r.cause = %(cause)s::text)
      AND (%(words)s::text IS NULL OR strpos(l.custom_id, %(words)s::text) > 0)
    ORDER BY r.lane_id, r.line_no
    LIMIT %(limit)s
)
SELECT
    f.lane_id, f.line_no AS position, f.line_no, f.custom_id, 'failed' AS state, f.attempt::integer AS attempts,
    coalesce(cause.code, 'http_' || f.status_code) AS code,
    cause.message, f.upstream_seconds, f.finished_at, true AS matches
FROM found AS f
LEFT JOIN batchline.failure_causes AS cause ON cause.batch_id = %(batch)s AND cause.key = f.cause
UNION ALL
(
    SELECT r.lane_id, r.line_no, 0, '', '', 0, NULL, NULL, NULL, NULL, false
    FROM result AS r
    ORDER BY r.lane_id, r.line_no
    OFFSET %(chunk)s - 1
    LIMIT 1
)
UNION ALL
(
    SELECT lane.id, 2147483647, 0, '', '', 0, NULL, NULL, NULL, NULL, false
    FROM lane
    WHERE (SELECT count(*) FROM result) < %(chunk)s
    ORDER BY lane.id
    OFFSET 199
    LIMIT 1
)
ORDER BY matches DESC, lane_id, position

-- operation_children: the children of a governed batch with their items and outcomes, by number, page by page; all, or those
-- with one status.
--
-- A governed batch has one lane, and the ordinal of a child is its number minus one. `child` finds the numbers of the page:
-- each of its parts is for some statuses, and reads one range of an index in order. Children without an outcome are in the
-- spans of the batch, or past its cursor (the invariant), until the batch is frozen. Only then does a child that never ran
-- become cancelled; before, it counts as pending, as in the batch's counters. The inner LIMITs are the largest page, and
-- LIMIT 1 makes the planner probe by key.
-- One statement has one snapshot, so the parts agree with the view about the status. Locks: none.
WITH
lane AS MATERIALIZED (
    SELECT n.id, n.file_no, n.lane_no, n.next, n.total, b.finalizing_at IS NOT NULL AS frozen
    FROM batchline.batches AS b
    JOIN batchline.current_lanes AS n ON n.batch_id = b.id
    WHERE b.id = %(batch)s
),
child AS MATERIALIZED (
    SELECT line.ordinal
    FROM lane
    CROSS JOIN LATERAL (
        SELECT l.ordinal
        FROM batchline.lines AS l
        WHERE l.file_no = lane.file_no AND l.lane_no = lane.lane_no AND l.ordinal >= %(after)s
        ORDER BY l.ordinal
        LIMIT 1001
    ) AS line
    WHERE %(status)s::text IS NULL

    UNION ALL
    SELECT result.ordinal
    FROM lane
    CROSS JOIN LATERAL (
        SELECT r.ordinal
        FROM batchline.results AS r
        WHERE r.lane_id = lane.id AND r.line_no > %(after)s AND r.outcome = 'completed'
        ORDER BY r.line_no
        LIMIT 1001
    ) AS result
    WHERE %(status)s::text = 'SUCCEEDED'

    UNION ALL
    SELECT result.ordinal
    FROM lane
    CROSS JOIN LATERAL (
        SELECT r.ordinal
        FROM batchline.results AS r
        WHERE r.lane_id = lane.id AND r.line_no > %(after)s AND r.outcome = 'failed'
        ORDER BY r.line_no
        LIMIT 1001
    ) AS result
    WHERE %(status)s::text = 'FAILED'

    UNION ALL
    SELECT open.ordinal
    FROM lane
    CROSS JOIN LATERAL (
        SELECT s.outstanding, s.worker_id IS NOT NULL OR s.task_id IS NOT NULL AS running
        FROM batchline.spans AS s
        WHERE s.batch_id = %(batch)s
        UNION ALL
        SELECT int4multirange(int4range(lane.next, lane.total)), false
    ) AS part
    CROSS JOIN LATERAL unnest(part.outstanding * int4multirange(int4range(%(after)s, NULL))) AS piece
    CROSS JOIN LATERAL generate_series(lower(piece), least(upper(piece), lower(piece) + 1001) - 1) AS open (ordinal)
    WHERE part.running = (%(status)s::text = 'RUNNING') AND %(status)s::text IN ('PENDING', 'RUNNING') AND NOT lane.frozen

    UNION ALL
    SELECT line.ordinal
    FROM lane
    CROSS JOIN LATERAL (
        SELECT l.ordinal
        FROM batchline.lines AS l
        WHERE l.file_no = lane.file_no
          AND l.lane_no = lane.lane_no
          AND l.ordinal >= %(after)s
          -- Not NOT EXISTS: the planner would read all lines and all results and sort what is left.
          AND (SELECT true FROM batchline.results AS r WHERE r.lane_id = lane.id AND r.line_no = l.line_no) IS NULL
        ORDER BY l.ordinal
        LIMIT 1001
    ) AS line
    WHERE %(status)s::text = 'CANCELLED' AND lane.frozen
)
SELECT
    request.line_no,
    request.custom_id,
    CASE WHEN request.state IN ('canceled', 'expired') AND NOT lane.frozen THEN 'pending' ELSE request.state END,
    request.attempt,
    request.status_code,
    request.finished_at,
    coalesce(
        request.finished_at,
        -- NULL unless a worker holds it.
        request.claimed_at,
        (
            SELECT a.created_at
            FROM batchline.retry_attempts AS a
            WHERE a.lane_id = lane.id AND a.ordinal = page.ordinal
            ORDER BY a.attempt DESC
            LIMIT 1
        )
    ) AS last_attempt_at,
    request.body,
    request.output
FROM (
    SELECT first.ordinal
    FROM (SELECT ordinal FROM child ORDER BY ordinal LIMIT 1001) AS first
    LIMIT %(limit)s
) AS page
CROSS JOIN lane
CROSS JOIN LATERAL (
    SELECT q.*, l.body, r.output
    FROM batchline.requests AS q
    JOIN batchline.lines AS l
        ON l.file_no = lane.file_no AND l.lane_no = lane.lane_no AND l.ordinal = page.ordinal
    LEFT JOIN batchline.results AS r ON r.lane_id = lane.id AND r.line_no = l.line_no
    WHERE q.batch_id = %(batch)s AND q.lane_id = lane.id AND q.ordinal = page.ordinal
    LIMIT 1
) AS request
ORDER BY page.ordinal

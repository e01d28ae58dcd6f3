-- list_items: items of a batch in the order of its lanes, after a position, by state and words in the custom_id.
--
-- Looks at no more than `chunk` lines. If there are more, the last row is the last of them with `matches` false: the next page
-- continues there. `fresh`: only lines that no worker has claimed, from the cursors on. Nothing of a batch whose results are
-- being deleted. An item without a result is in a span, or past the cursor (docs/design.md, the invariant).
--
-- Cost: the lanes and spans of the batch, and for each line one result by key. Locks: none.
WITH
batch AS (
    SELECT b.*
    FROM batchline.batches AS b
    WHERE b.id = %(batch)s AND b.purging_at IS NULL
),
lane AS (
    SELECT n.*, greatest(0, from_ordinal) AS start
    FROM batchline.current_lanes AS n
    CROSS JOIN LATERAL (
        SELECT greatest(
            CASE WHEN n.id = %(after_lane)s THEN %(after)s::integer + 1 ELSE 0 END,
            CASE WHEN %(fresh)s::boolean THEN n.next ELSE 0 END
        ) AS from_ordinal
    ) AS begun
    WHERE n.batch_id = %(batch)s AND n.id >= %(after_lane)s
),
reach AS (
    SELECT
        lane.*,
        sum(greatest(lane.total - lane.start, 0)) OVER (ORDER BY lane.id) - greatest(lane.total - lane.start, 0) AS earlier
    FROM lane
),
stretch AS MATERIALIZED (
    SELECT r.id, r.file_no, r.lane_no, r.next, r.start, least(r.total, r.start + %(chunk)s - r.earlier)::integer AS stop
    FROM reach AS r
    WHERE r.earlier < %(chunk)s AND r.total > r.start
),
piece AS MATERIALIZED (
    SELECT s.lane_id, part.piece, s.worker_id, s.task_id, s.available_at, s.attempt
    FROM batchline.spans AS s
    JOIN stretch AS t ON t.id = s.lane_id
    CROSS JOIN LATERAL unnest(s.outstanding) AS part (piece)
    WHERE s.batch_id = %(batch)s
      AND s.outstanding && int4range(t.start, t.stop)
      AND part.piece && int4range(t.start, t.stop)
),
item AS MATERIALIZED (
    SELECT
        t.id AS lane_id,
        l.ordinal,
        l.line_no,
        l.custom_id,
        CASE
            WHEN r.outcome IS NOT NULL THEN r.outcome::text
            WHEN b.cancelling_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= t.next) THEN 'cancelled'
            WHEN b.expiring_at IS NOT NULL AND (b.finalizing_at IS NOT NULL OR l.ordinal >= t.next) THEN 'expired'
            WHEN l.ordinal >= t.next THEN 'pending'
            WHEN p.lane_id IS NULL THEN coalesce(b.left_out_as, 'pending')
            WHEN p.worker_id IS NOT NULL OR p.task_id IS NOT NULL THEN 'in_flight'
            WHEN p.available_at > now() THEN 'retrying'
            ELSE 'pending'
        END AS state,
        coalesce(r.attempt::integer, p.attempt, 0) AS attempts,
        r.cause,
        r.status_code,
        r.upstream_seconds,
        r.finished_at
    FROM batch AS b
    CROSS JOIN stretch AS t
    CROSS JOIN LATERAL (
        SELECT ordinal, line_no, custom_id
        FROM batchline.lines
        WHERE lines.file_no = t.file_no
          AND lines.lane_no = t.lane_no
          AND lines.ordinal >= t.start
          AND lines.ordinal < t.stop
          AND (%(words)s::text IS NULL OR strpos(lines.custom_id, %(words)s::text) > 0)
        ORDER BY lines.ordinal
        LIMIT %(chunk)s
    ) AS l
    LEFT JOIN LATERAL (
        SELECT * FROM batchline.results WHERE results.lane_id = t.id AND results.line_no = l.line_no LIMIT 1
    ) AS r ON l.ordinal < t.next
    LEFT JOIN piece AS p ON p.lane_id = t.id AND r.outcome IS NULL AND p.piece @> l.ordinal
),
found AS (
    SELECT i.*
    FROM item AS i
    WHERE %(state)s::text IS NULL OR i.state = %(state)s::text
    ORDER BY i.lane_id, i.ordinal
    LIMIT %(limit)s
)
SELECT
    f.lane_id, f.ordinal AS position, f.line_no, f.custom_id, f.state, f.attempts,
    coalesce(cause.code, CASE WHEN f.state = 'failed' THEN 'http_' || f.status_code END) AS code,
    cause.message, f.upstream_seconds, f.finished_at, true AS matches
FROM found AS f
LEFT JOIN batchline.failure_causes AS cause ON cause.batch_id = %(batch)s AND cause.key = f.cause
UNION ALL
(
    SELECT t.id, t.stop - 1, 0, '', '', 0, NULL, NULL, NULL, NULL, false
    FROM stretch AS t
    WHERE (SELECT sum(every.stop - every.start) FROM stretch AS every) >= %(chunk)s
    ORDER BY t.id DESC
    LIMIT 1
)
ORDER BY matches DESC, lane_id, position

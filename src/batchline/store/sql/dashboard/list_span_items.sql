-- list_span_items: items of a batch that were claimed and have no result, in the order of its lanes, after a position: those in flight, or
-- those that are free and wait for another try (`in_flight` false). With the error of the last attempt.
--
-- Looks at no more than `chunk` of them. If there are so many, the last row is the last of them with `matches` false: the next
-- page continues there. Cost: the spans of the batch, one line by key for each item. Locks: none.
WITH
piece AS MATERIALIZED (
    SELECT
        n.id AS lane_id, n.file_no, n.lane_no, s.attempt,
        greatest(lower(part.piece), CASE WHEN n.id = %(after_lane)s THEN %(after)s::integer + 1 ELSE 0 END) AS start,
        upper(part.piece) AS stop
    FROM batchline.spans AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    CROSS JOIN LATERAL unnest(s.outstanding) AS part (piece)
    WHERE s.batch_id = %(batch)s
      AND (s.worker_id IS NOT NULL OR s.task_id IS NOT NULL) = %(in_flight)s
      AND n.id >= %(after_lane)s
),
reach AS (
    SELECT
        piece.*,
        sum(piece.stop - piece.start) OVER (ORDER BY piece.lane_id, piece.start, piece.stop) - (piece.stop - piece.start) AS earlier
    FROM piece
    WHERE piece.stop > piece.start
),
item AS MATERIALIZED (
    SELECT r.lane_id, r.attempt, l.ordinal, l.line_no, l.custom_id
    FROM reach AS r
    CROSS JOIN LATERAL (
        SELECT lines.ordinal, lines.line_no, lines.custom_id
        FROM batchline.lines
        WHERE lines.file_no = r.file_no
          AND lines.lane_no = r.lane_no
          AND lines.ordinal >= r.start
          AND lines.ordinal < least(r.stop, r.start + %(chunk)s - r.earlier)
        ORDER BY lines.ordinal
        LIMIT %(chunk)s
    ) AS l
    WHERE r.earlier < %(chunk)s
),
found AS (
    SELECT i.*
    FROM item AS i
    WHERE %(words)s::text IS NULL OR strpos(i.custom_id, %(words)s::text) > 0
    ORDER BY i.lane_id, i.ordinal
    LIMIT %(limit)s
)
SELECT
    f.lane_id, f.ordinal AS position, f.line_no, f.custom_id,
    CASE WHEN %(in_flight)s THEN 'in_flight' ELSE 'retrying' END AS state,
    f.attempt AS attempts,
    last.error_code AS code,
    left(last.message, 500) AS message, last.upstream_seconds, NULL::timestamptz AS finished_at, true AS matches
FROM found AS f
LEFT JOIN LATERAL (
    SELECT a.error_code, a.message, a.upstream_seconds
    FROM batchline.retry_attempts AS a
    WHERE a.lane_id = f.lane_id AND a.ordinal = f.ordinal AND a.attempt < f.attempt
    ORDER BY a.attempt DESC
    LIMIT 1
) AS last ON true
UNION ALL
(
    SELECT i.lane_id, i.ordinal, 0, '', '', 0, NULL, NULL, NULL, NULL, false
    FROM item AS i
    ORDER BY i.lane_id, i.ordinal
    OFFSET %(chunk)s - 1
    LIMIT 1
)
ORDER BY matches DESC, lane_id, position

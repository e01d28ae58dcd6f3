-- find_line: the item of a batch with this line number: where it is, its request and its answer, cut at `max_bytes`.
--
-- Line numbers of a lane grow with the ordinals, so each lane is searched by halves (a lane without blank lines is found at once if
-- it is the only one). Cost: some 20 reads by key per lane. Locks: none.
WITH RECURSIVE
search AS (
    SELECT n.id AS lane_id, n.file_no, n.lane_no, 0 AS low, n.total - 1 AS high
    FROM batchline.current_lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    WHERE n.batch_id = %(batch)s AND b.purging_at IS NULL AND n.total > 0
    UNION ALL
    SELECT
        s.lane_id, s.file_no, s.lane_no,
        CASE WHEN middle.line_no < %(line)s THEN middle.ordinal + 1 ELSE s.low END,
        CASE WHEN middle.line_no < %(line)s THEN s.high ELSE middle.ordinal END
    FROM search AS s
    CROSS JOIN LATERAL (
        SELECT l.ordinal, l.line_no
        FROM batchline.lines AS l
        WHERE l.file_no = s.file_no AND l.lane_no = s.lane_no AND l.ordinal = (s.low + s.high) / 2
        LIMIT 1
    ) AS middle
    WHERE s.low < s.high
)
SELECT
    l.custom_id,
    n.url,
    n.model,
    left(l.body, %(max_bytes)s) AS body,
    octet_length(l.body) AS body_bytes,
    left(r.output, %(max_bytes)s) AS output,
    octet_length(r.output) AS output_bytes,
    s.lane_id,
    s.low AS ordinal
FROM search AS s
JOIN batchline.lanes AS n ON n.id = s.lane_id
CROSS JOIN LATERAL (
    SELECT *
    FROM batchline.lines
    WHERE lines.file_no = s.file_no AND lines.lane_no = s.lane_no AND lines.ordinal = s.low
    LIMIT 1
) AS l
LEFT JOIN LATERAL (
    SELECT * FROM batchline.results WHERE results.lane_id = s.lane_id AND results.line_no = l.line_no LIMIT 1
) AS r ON true
WHERE s.low = s.high AND l.line_no = %(line)s

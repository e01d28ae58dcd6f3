-- fetch: the lines of spans that `worker` has just claimed. No locks.
--
-- Reads `outstanding` again instead of being told it: a span that was taken away meanwhile (the lease
-- was over) yields nothing.
SELECT
    s.id AS span_id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    l.body
FROM spans AS s
JOIN lanes AS n ON n.id = s.lane_id
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
CROSS JOIN LATERAL (
    SELECT lines.ordinal, lines.line_no, lines.custom_id, lines.body
    FROM lines
    WHERE lines.file_no = n.file_no
      AND lines.lane_no = n.lane_no
      AND lines.ordinal >= lower(piece)
      AND lines.ordinal < upper(piece)
    ORDER BY lines.ordinal
) AS l
WHERE s.id = ANY (%(spans)s::bigint[]) AND s.worker_id = %(worker)s

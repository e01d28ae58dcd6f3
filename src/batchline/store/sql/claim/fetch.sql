-- fetch: the lines of spans that `worker` has just claimed. No locks.
--
-- Reads `outstanding` again instead of taking it as a parameter: a span that was taken away meanwhile (the lease
-- was over) yields nothing. Spans are looked up by id alone: the index of a worker's spans may be full of dead
-- entries. A body that is longer than `largest` is left out: then `left_out` is its length.
SELECT
    s.id AS span_id,
    l.ordinal,
    l.line_no,
    l.custom_id,
    CASE WHEN octet_length(l.body) <= %(largest)s::integer THEN l.body ELSE '' END AS body,
    CASE WHEN octet_length(l.body) <= %(largest)s::integer THEN 0 ELSE octet_length(l.body) END AS left_out
FROM unnest(%(spans)s::bigint[]) AS claimed (id)
CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = claimed.id LIMIT 1) AS s
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
CROSS JOIN LATERAL (
    SELECT lines.ordinal, lines.line_no, lines.custom_id, lines.body
    FROM batchline.lines
    WHERE lines.file_no = n.file_no
      AND lines.lane_no = n.lane_no
      AND lines.ordinal >= lower(piece)
      AND lines.ordinal < upper(piece)
    ORDER BY lines.ordinal
) AS l
WHERE s.worker_id = %(worker)s

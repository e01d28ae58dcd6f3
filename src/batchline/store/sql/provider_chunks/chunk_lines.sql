-- chunk_lines: some lines of a chunk, in the order of `ordinals`: those that have no verdict yet. `bodies`: with their bodies.
-- Cost: one index probe per line. No locks.
SELECT l.ordinal, l.line_no, l.custom_id, CASE WHEN %(bodies)s::boolean THEN l.body ELSE '' END AS body
FROM unnest(%(ordinals)s::integer[]) WITH ORDINALITY AS wanted (ordinal, nth)
CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = %(span)s LIMIT 1) AS s
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
CROSS JOIN LATERAL (
    SELECT lines.ordinal, lines.line_no, lines.custom_id, lines.body
    FROM batchline.lines
    WHERE lines.file_no = n.file_no AND lines.lane_no = n.lane_no AND lines.ordinal = wanted.ordinal
    LIMIT 1
) AS l
WHERE s.outstanding @> wanted.ordinal
ORDER BY wanted.nth

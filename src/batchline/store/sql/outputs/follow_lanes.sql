-- follow_lanes: how far each of a batch's lanes is finished without a gap. For each of `lanes`, in their order: the ordinal
-- of its first line without a result, the number of the line before it that is finished, and the number of that first line
-- (NULL if the lane has no such line).
--
-- `cursors` and `lasts` have the first two as the last call returned them; at first 0. Ordinals ascend with line numbers, so
-- the results after `last` are without a gap as long as their ordinals count up from `cursor`. At most 20,000 results of
-- each lane are looked at, by the primary key; nothing else is read but one line per lane. A result is never removed while
-- its batch runs, so what is found stays true. Locks: none.
SELECT lane.cursor + found.lines, coalesce(found.last, lane.last), unfinished.line_no
FROM unnest(%(lanes)s::bigint[], %(lane_nos)s::integer[], %(cursors)s::integer[], %(lasts)s::integer[])
    WITH ORDINALITY AS lane (id, lane_no, cursor, last, nth)
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE r.ordinal = lane.cursor + r.nth)::integer AS lines,
        max(r.line_no) FILTER (WHERE r.ordinal = lane.cursor + r.nth) AS last
    FROM (
        SELECT line_no, ordinal, row_number() OVER (ORDER BY line_no) - 1 AS nth
        FROM batchline.results
        WHERE lane_id = lane.id AND line_no > lane.last
        ORDER BY line_no
        LIMIT 20000
    ) AS r
) AS found
LEFT JOIN batchline.lines AS unfinished
    ON unfinished.file_no = %(file_no)s
    AND unfinished.lane_no = lane.lane_no
    AND unfinished.ordinal = lane.cursor + found.lines
ORDER BY lane.nth

-- next_cursors: for each of `lane_nos`, in their order, the ordinal of its first line after line number `until`.
--
-- `cursors` has the ordinals for `after`; a lane has at most `until - after` lines in between. Locks: none.
SELECT lane.cursor + count(l.ordinal)::integer
FROM unnest(%(lane_nos)s::integer[], %(cursors)s::integer[]) WITH ORDINALITY AS lane (lane_no, cursor, nth)
LEFT JOIN batchline.lines AS l
    ON l.file_no = %(file_no)s
    AND l.lane_no = lane.lane_no
    AND l.ordinal >= lane.cursor
    AND l.ordinal < lane.cursor + (%(until)s::integer - %(after)s::integer)
    AND l.line_no <= %(until)s
GROUP BY lane.nth, lane.cursor
ORDER BY lane.nth

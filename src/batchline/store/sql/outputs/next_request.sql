-- next_request: the first line number of a file that is not read yet; NULL if there is none. `cursors` contains, for
-- each of `lane_nos`, the ordinal of its next line. One lookup in the primary key per lane. Locks: none.
SELECT min(l.line_no)
FROM unnest(%(lane_nos)s::integer[], %(cursors)s::integer[]) AS lane (lane_no, cursor)
JOIN batchline.lines AS l ON l.file_no = %(file_no)s AND l.lane_no = lane.lane_no AND l.ordinal = lane.cursor

-- last_line: the highest line number that a batch's output or error lines have; 0: there are none.
--
-- Of results, and, if the batch has lines that never ran (`never_run`), of all lines. One look into an index for each lane,
-- and one more for lines. Locks: none.
SELECT coalesce(max(greatest(finished.line_no, unfinished.line_no)), 0)
FROM batchline.lanes AS n
LEFT JOIN LATERAL (
    SELECT r.line_no FROM batchline.results AS r WHERE r.lane_id = n.id ORDER BY r.line_no DESC LIMIT 1
) AS finished ON true
LEFT JOIN batchline.lines AS unfinished
    ON %(never_run)s::boolean
    AND unfinished.file_no = n.file_no
    AND unfinished.lane_no = n.lane_no
    AND unfinished.ordinal = n.total - 1
WHERE n.batch_id = %(batch)s

-- page_unrun_items: the items of one lane from an ordinal on, with their results. Those that never ran have none.
--
-- For batches that were cancelled or have expired. One range of each primary key. Locks: none.
SELECT l.ordinal, l.line_no, r.attempt, r.output, l.custom_id
FROM (
    SELECT ordinal, line_no, custom_id
    FROM batchline.lines
    WHERE file_no = %(file_no)s AND lane_no = %(lane_no)s AND ordinal >= %(first)s
    ORDER BY ordinal
    LIMIT %(limit)s
) AS l
LEFT JOIN LATERAL (
    SELECT attempt, output FROM batchline.results WHERE lane_id = %(lane)s AND results.line_no = l.line_no LIMIT 1
) AS r ON true
ORDER BY l.ordinal

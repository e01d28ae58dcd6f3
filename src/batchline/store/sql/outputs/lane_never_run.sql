-- lane_never_run: a template: an error line, made here, for each line of one lane that has no result.
--
-- Inside, only the line number and the custom_id are sorted; the text is made as the rows go out. OFFSET 0
-- keeps the planner from making it before the sort, which would then spill several times as much to disk.
(
    SELECT
        line_no,
        {before} || line_no || '","custom_id":' || to_json(custom_id)::text || {after} AS line
    FROM (
        SELECT l.line_no, l.custom_id
        FROM batchline.lines AS l
        WHERE l.file_no = {file}
          AND l.lane_no = {lane_no}
          AND NOT EXISTS (SELECT FROM batchline.results AS r WHERE r.lane_id = {lane} AND r.line_no = l.line_no)
        ORDER BY l.line_no
        OFFSET 0
    ) AS never_run
    ORDER BY line_no
)

-- lane_never_run: template that composes an error line for each line of one lane without a result.
--
-- The inner query sorts only the line number and the custom_id; the text is composed after the sort. OFFSET 0 keeps the
-- planner from composing it before the sort, which would spill several times as much to disk.
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

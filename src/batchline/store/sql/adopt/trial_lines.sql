-- trial_lines: copy a few templates as lines of a file that does not exist, to measure how fast that is. The caller rolls
-- this back. Returns the number of lines and the seconds. Locks: only its own rows.
WITH
line AS (
    INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
    SELECT
        0,
        0,
        row_number() OVER (),
        row_number() OVER (),
        coalesce(t.custom_id, t.id::text),
        translate(t.body, E'\n\r\t', '   ')
    FROM (SELECT * FROM batchline.source_templates LIMIT %(rows)s) AS t
    RETURNING 1
)
SELECT count(*)::integer, extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 FROM line

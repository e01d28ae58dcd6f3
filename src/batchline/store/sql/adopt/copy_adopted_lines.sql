-- copy_adopted_lines: copy the next lines of a numbered file, up to line `until`, and remember that.
--
-- In JSON a raw line break or tab can only be white space between tokens; a line must have none, so it becomes a space.
-- A template without a custom_id gets its own id as one. Returns the number of lines. Locks: only its own rows.
WITH
file AS (
    UPDATE batchline.adopted_files SET copied = %(until)s WHERE file_no = %(file_no)s AND copied = %(copied)s
    RETURNING file_no
),
line AS (
    INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
    SELECT
        a.file_no,
        a.lane_no,
        a.ordinal,
        a.line_no,
        coalesce(t.custom_id, t.id::text),
        translate(t.body, E'\n\r\t', '   ')
    FROM file
    JOIN batchline.adopted_lines AS a
        ON a.file_no = file.file_no AND a.line_no > %(copied)s AND a.line_no <= %(until)s
    JOIN batchline.source_templates AS t ON t.id = a.template_id
    RETURNING 1
)
SELECT count(*)::integer FROM line

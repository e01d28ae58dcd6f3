-- number_file: give a file a number, and its templates their lines: in the order of their line numbers; templates with the
-- same one in the order in which they were created.
--
-- Only ids are written; the bodies follow in chunks. Lanes are numbered by their first lines. Locks: only its own rows.
WITH
file AS (
    INSERT INTO batchline.adopted_files (file_id, file_no)
    VALUES (%(file)s, nextval(pg_get_serial_sequence('batchline.files', 'no')))
    RETURNING file_no
),
numbered AS (
    SELECT
        t.id,
        t.model,
        t.url,
        t.method,
        row_number() OVER (ORDER BY t.line_number, t.created_at, t.id) AS line_no
    FROM batchline.source_templates AS t
    WHERE t.file_id = %(file)s
),
in_lane AS (
    SELECT
        *,
        min(line_no) OVER lane AS first_line_no,
        row_number() OVER (lane ORDER BY line_no) - 1 AS ordinal
    FROM numbered
    WINDOW lane AS (PARTITION BY model, url)
),
line AS (
    SELECT *, dense_rank() OVER (ORDER BY first_line_no) - 1 AS lane_no FROM in_lane
),
part AS (
    INSERT INTO batchline.adopted_file_lanes (file_no, lane_no, model, url, total)
    SELECT file.file_no, line.lane_no, min(line.model), min(line.url), count(*)
    FROM file
    CROSS JOIN line
    GROUP BY file.file_no, line.lane_no
),
written AS (
    INSERT INTO batchline.adopted_lines (file_no, line_no, lane_no, ordinal, template_id)
    SELECT file.file_no, line.line_no, line.lane_no, line.ordinal, line.id
    FROM file
    CROSS JOIN line
    RETURNING 1
)
SELECT
    file.file_no,
    (SELECT count(*) FROM written)::integer,
    (SELECT count(*) FROM numbered WHERE upper(method) <> 'POST')::integer
FROM file

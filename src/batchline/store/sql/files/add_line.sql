-- add_line: add an input file of one line, in the transaction that creates its batch.
--
-- Locks: only its own rows.
WITH
file AS (
    INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count, expires_at)
    VALUES (
        %(file)s,
        %(tenant)s,
        'batch',
        %(filename)s,
        octet_length(%(body)s::text),
        1,
        now() + make_interval(secs => %(expires_after)s)
    )
    RETURNING no
),
part AS (
    INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
    SELECT no, 0, %(model)s, %(url)s, 1 FROM file
)
INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
SELECT no, 0, 0, 1, %(custom_id)s, %(body)s FROM file

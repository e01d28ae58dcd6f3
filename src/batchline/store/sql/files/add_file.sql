-- add_file: add the row of a file and its lanes, in the transaction that copied its lines, if any.
--
-- Runs last, when size, digest and lanes are known. Its commit makes the file exist. `lane_models`, `lane_urls` and
-- `lane_totals` are in the order of the lanes' numbers. `no` is NULL if no line has been written yet: then the file gets the
-- next number. Locks: only its own rows.
WITH
file AS (
    INSERT INTO batchline.files (
        id, no, tenant, purpose, filename, bytes, line_count, digest, object_key, errors, expires_at
    )
    OVERRIDING SYSTEM VALUE
    VALUES (
        %(id)s,
        coalesce(%(no)s::bigint, nextval(pg_get_serial_sequence('batchline.files', 'no'))),
        %(tenant)s,
        %(purpose)s,
        %(filename)s,
        %(bytes)s,
        %(line_count)s,
        %(digest)s,
        %(object_key)s,
        %(errors)s,
        now() + make_interval(secs => %(expires_after)s)
    )
    RETURNING *
),
lane AS (
    INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
    SELECT file.no, part.nth - 1, part.model, part.url, part.total
    FROM file
    CROSS JOIN unnest(
        %(lane_models)s::text[],
        %(lane_urls)s::text[],
        %(lane_totals)s::integer[]
    ) WITH ORDINALITY AS part (model, url, total, nth)
)
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM file

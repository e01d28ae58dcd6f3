-- create_batch: one row for the batch and one for each lane of its file, whatever the number of lines.
--
-- The lanes' routing key is the upstream that the batch names, or else each lane's model.
-- Returns no row when the file is not there. Locks: the file's row, so that it cannot be deleted meanwhile.
WITH
file AS (
    SELECT id, no, line_count
    FROM files
    WHERE id = %(file)s AND tenant = %(tenant)s AND object_key IS NULL
    FOR KEY SHARE
),
batch AS (
    INSERT INTO batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, resume_key, total,
        in_progress_at, expires_at
    )
    SELECT
        %(batch)s,
        %(tenant)s,
        file.id,
        %(endpoint)s,
        %(window)s,
        %(settings)s,
        %(metadata)s,
        %(resume_key)s,
        file.line_count,
        now(),
        now() + make_interval(secs => %(window_seconds)s)
    FROM file
    RETURNING *
),
lane AS (
    INSERT INTO lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total)
    SELECT
        batch.id,
        batch.tenant,
        coalesce(batch.settings ->> 'upstream', part.model),
        batch.expires_at,
        part.file_no,
        part.lane_no,
        part.model,
        part.url,
        part.total
    FROM batch
    CROSS JOIN file
    JOIN file_lanes AS part ON part.file_no = file.no
)
SELECT batch.*, pg_notify('batchline', 'open ' || batch.id) IS NULL AS told FROM batch

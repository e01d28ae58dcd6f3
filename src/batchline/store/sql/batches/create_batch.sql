-- create_batch: one row for the batch and one for each lane of its file, whatever the number of lines.
--
-- The lanes' routing key is the upstream that the batch names, or else each lane's model. That of a reserved batch begins
-- with `run:`, so that a worker leaves it alone by its scope alone: the claim needs no further condition. If its lines go through a
-- batch API, `batch:` follows: no worker may send them directly, so only the same `run` works on them. Lines of Python
-- operations are routed by their url, which no upload can have; a model of such a name gets another key.
--
-- A lane without lines is fed: it gets its lines while the batch runs (emit). A batch that accepts items has only such lanes.
-- Nothing of a batch that is held is claimed before it is released.
--
-- Returns no row when no batch can run over the file, or it is not there. Locks: the file's row, so that it
-- cannot be deleted meanwhile.
WITH
file AS (
    SELECT id, no, line_count
    FROM batchline.files
    WHERE id = %(file)s
      AND tenant = %(tenant)s
      AND purpose = 'batch'
      AND errors IS NULL
      AND deleted_at IS NULL
      AND (expires_at IS NULL OR expires_at > now())
    FOR KEY SHARE
),
part AS (
    SELECT
        part.file_no,
        part.lane_no,
        part.model,
        part.url,
        part.total,
        coalesce(
            CASE WHEN starts_with(part.url, 'python:') THEN part.url END,
            CASE WHEN (%(settings)s::jsonb ->> 'reserved')::boolean THEN 'run:' ELSE '' END
            || CASE WHEN %(settings)s::jsonb ->> 'relay' IS NOT NULL THEN 'batch:' ELSE '' END
            || (%(settings)s::jsonb ->> 'upstream'),
            CASE WHEN starts_with(part.model, 'python:') THEN 'model:' ELSE '' END || part.model
        ) AS key
    FROM file
    JOIN batchline.file_lanes AS part ON part.file_no = file.no
),
batch AS (
    INSERT INTO batchline.batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, resume_key, total,
        in_progress_at, expires_at, model, output_expires_after, planned_output_id, priority,
        accepting, held_at, concurrency
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
        now() + make_interval(secs => %(window_seconds)s::float8),
        (SELECT min(part.model) FROM part HAVING min(part.model) = max(part.model)),
        %(output_expires_after)s,
        %(planned_output)s,
        %(priority)s,
        %(accepting)s,
        CASE WHEN %(held)s THEN now() END,
        %(concurrency)s
    FROM file
    RETURNING *
),
lane AS (
    INSERT INTO batchline.lanes (
        batch_id, tenant, key, priority, concurrency, deadline, file_no, lane_no, model, url, total, open, drained, fed
    )
    SELECT
        batch.id,
        batch.tenant,
        part.key,
        batch.priority,
        batch.concurrency,
        -- Later than all others, and finite: PostgreSQL before 17 cannot subtract infinite times.
        coalesce(batch.expires_at, '9999-12-31 00:00:00+00'),
        part.file_no,
        part.lane_no,
        part.model,
        part.url,
        part.total,
        batch.held_at IS NULL,
        part.total = 0,
        part.total = 0
    FROM batch
    CROSS JOIN part
)
SELECT batch.*, pg_notify('batchline', 'open ' || batch.id) IS NULL AS notified
FROM batch

-- fail_batch: create a batch that failed validation, with its event. It has no lanes, so nothing of it ever runs.
-- Locks: only its own rows.
WITH
batch AS (
    INSERT INTO batchline.batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, total, expires_at, failed_at, errors
    )
    VALUES (
        %(batch)s,
        %(tenant)s,
        %(file)s,
        %(endpoint)s,
        %(window)s,
        %(settings)s,
        %(metadata)s,
        0,
        now() + make_interval(secs => %(window_seconds)s),
        now(),
        %(errors)s
    )
    RETURNING *
),
event AS (
    INSERT INTO batchline.outbox (id, batch_id, type)
    SELECT %(event)s, id, 'batch.failed' FROM batch
)
SELECT batch.*, pg_notify('batchline', 'ended ' || id) IS NULL AS notified FROM batch

-- fail_batch: a batch that failed while validating: it has no lanes, nothing of it ever runs, and the event that
-- tells of it is written with it. Locks: none but its own rows.
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

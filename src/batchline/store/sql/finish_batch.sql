-- finish_batch: the one commit that ends a batch: its files, its summary, its end, and the event that
-- tells of it. Fenced: only the worker that is still its finalizer gets a row back; another one's upload
-- is garbage that the sweep removes.
--
-- Locks: the batch row.
WITH
batch AS (
    UPDATE batches AS b
    SET cancelled_at = CASE WHEN b.cancelling_at IS NOT NULL THEN now() END,
        expired_at = CASE WHEN b.cancelling_at IS NULL AND b.expiring_at IS NOT NULL THEN now() END,
        completed_at = CASE WHEN b.cancelling_at IS NULL AND b.expiring_at IS NULL THEN now() END,
        output_file_id = %(output_file)s::uuid,
        error_file_id = %(error_file)s::uuid,
        summary = %(summary)s
    WHERE b.id = %(batch)s AND b.finalizer = %(worker)s AND b.finalizing_at IS NOT NULL AND b.ended_at IS NULL
    RETURNING b.*
),
file AS (
    INSERT INTO files (id, tenant, purpose, filename, bytes, line_count, object_key, expires_at)
    SELECT
        f.id,
        batch.tenant,
        CASE WHEN batch.submitted_by IS NULL THEN 'batch_output' ELSE 'operation_output' END,
        f.filename,
        f.bytes,
        f.line_count,
        f.object_key,
        now() + make_interval(secs => batch.output_expires_after)
    FROM batch
    CROSS JOIN unnest(
        %(file_ids)s::uuid[],
        %(filenames)s::text[],
        %(file_bytes)s::bigint[],
        %(line_counts)s::integer[],
        %(object_keys)s::text[]
    ) AS f (id, filename, bytes, line_count, object_key)
),
event AS (
    INSERT INTO outbox (id, batch_id, type)
    SELECT
        %(event)s,
        id,
        CASE
            WHEN cancelled_at IS NOT NULL THEN 'batch.cancelled'
            WHEN expired_at IS NOT NULL THEN 'batch.expired'
            ELSE 'batch.completed'
        END
    FROM batch
)
SELECT batch.*, pg_notify('batchline', 'ended ' || id) IS NULL AS told FROM batch

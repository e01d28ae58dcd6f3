-- finish_batch: the one commit that ends a batch: its files, its summary, its end, and the event that
-- reports it. Fenced: only the worker that is still its finalizer gets a row back; another one's upload
-- is garbage that the sweep removes. `finalizing_at` names the end that its files are for: a batch that a retry has opened
-- again ends more than once.
--
-- A governed batch adds to the totals of its operation what it has not added before: it may have ended before, and have
-- been opened again by a retry. What is read of it here changes under its row lock only, and not before it has ended.
--
-- Locks: the batch row; its file's row if lines were added to it; of a governed one its own row in operation_batches and then the rows of its operation, for the
-- length of this commit, once a batch. Ordinary batches touch none of these.
WITH
batch AS (
    UPDATE batchline.batches AS b
    SET cancelled_at = CASE WHEN b.cancelling_at IS NOT NULL THEN now() END,
        expired_at = CASE WHEN b.cancelling_at IS NULL AND b.expiring_at IS NOT NULL THEN now() END,
        completed_at = CASE WHEN b.cancelling_at IS NULL AND b.expiring_at IS NULL THEN now() END,
        output_file_id = %(output_file)s::uuid,
        error_file_id = %(error_file)s::uuid,
        summary = %(summary)s,
        finalize_failures = 0,
        finalize_after = NULL,
        finalize_error = NULL
    WHERE b.id = %(batch)s AND b.finalizer = %(worker)s AND b.finalizing_at = %(finalizing_at)s AND b.ended_at IS NULL
    RETURNING b.*
),
file AS (
    INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count, object_key, expires_at)
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
-- Lines that came while it ran belong to its file now.
grown AS (
    UPDATE batchline.files AS f
    SET line_count = batch.total, bytes = f.bytes + batch.added_bytes
    FROM batch
    WHERE f.id = batch.file_id AND EXISTS (SELECT FROM batchline.lanes AS n WHERE n.batch_id = batch.id AND n.fed)
),
part AS (
    UPDATE batchline.file_lanes AS p
    SET total = n.total
    FROM batch
    JOIN batchline.lanes AS n ON n.batch_id = batch.id AND n.fed
    WHERE p.file_no = n.file_no AND p.lane_no = n.lane_no AND p.total <> n.total
),
governed AS (
    SELECT
        batch.id,
        o.operation,
        batch.completed,
        batch.failed + o.retried_children AS failed,
        batch.completed - o.counted_succeeded AS more_succeeded,
        batch.failed + o.retried_children - o.counted_failed AS more_failed,
        batch.total - batch.completed - batch.failed AS cancelled,
        batch.finalizing_at - batch.created_at AS took,
        o.first_took IS NULL AS first
    FROM batch
    JOIN batchline.operation_batches AS o ON o.batch_id = batch.id
    WHERE batch.submitted_by IS NOT NULL
),
counted AS (
    UPDATE batchline.operation_batches AS o
    SET counted_at = now(),
        counted_succeeded = g.completed,
        counted_failed = g.failed,
        first_took = coalesce(o.first_took, g.took)
    FROM governed AS g
    WHERE o.batch_id = g.id
),
totalled AS (
    INSERT INTO batchline.operation_totals AS t (operation, succeeded, failed, cancelled, batches, seconds)
    SELECT
        operation,
        more_succeeded,
        more_failed,
        cancelled,
        first::integer,
        CASE WHEN first THEN extract(epoch FROM took) ELSE 0 END
    FROM governed
    ON CONFLICT (operation) DO UPDATE SET
        succeeded = t.succeeded + excluded.succeeded,
        failed = t.failed + excluded.failed,
        cancelled = t.cancelled + excluded.cancelled,
        batches = t.batches + excluded.batches,
        seconds = t.seconds + excluded.seconds
),
timed AS (
    INSERT INTO batchline.operation_durations AS d (operation, bound, batches)
    SELECT
        operation,
        coalesce(
            (SELECT min(bound) FROM unnest(%(bounds)s::float8[]) AS bound WHERE extract(epoch FROM took) <= bound),
            'infinity'
        ),
        1
    FROM governed
    WHERE first
    ON CONFLICT (operation, bound) DO UPDATE SET batches = d.batches + 1
),
event AS (
    INSERT INTO batchline.outbox (id, batch_id, type)
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
SELECT batch.*, pg_notify('batchline', 'ended ' || id) IS NULL AS notified FROM batch

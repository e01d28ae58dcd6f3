-- reopen_batch: open an ended batch again after put_back_unrun and put_back_failed: `failed` lines have not failed any more,
-- its end and its files are removed from its row, and it has a whole window again if it had a deadline. Tokens and cost stay.
-- `max_attempts` replaces that of its settings, unless it is NULL.
--
-- Lines that never ran and that the retry leaves out (`unrun` is false) stay out: the cursors pass them, and `left_out` counts
-- them, so that the batch ends without them, as cancelled or expired as before (freeze). The files of its earlier end stay,
-- and are listed in `earlier_files`; those of a governed batch are deleted as by a user. The next output file gets a new id.
--
-- A batch that ran in steps goes on with them: what never ran is held back, and a next step is due when all others have ended.
--
-- A governed batch: what it has added to the totals stays there; what comes will be added at its next end.
--
-- Locks: the batch row, which the caller has locked before; then its lanes in id order.
WITH
old AS (
    SELECT
        b.total - b.completed - b.failed AS unrun,
        b.completed + b.failed AS finished,
        %(unrun)s AND b.step_total IS NOT NULL AND b.completed + b.failed < b.total AS stepped,
        b.output_file_id,
        b.error_file_id
    FROM batchline.batches AS b
    WHERE b.id = %(batch)s
),
batch AS (
    UPDATE batchline.batches AS b
    SET failed = b.failed - %(failed)s,
        settings = b.settings || CASE
            WHEN %(max_attempts)s::integer IS NULL THEN '{}'
            ELSE jsonb_build_object('max_attempts', %(max_attempts)s::integer)
        END,
        left_out = CASE WHEN %(unrun)s THEN 0 ELSE old.unrun END,
        left_out_as = CASE
            WHEN %(unrun)s OR old.unrun = 0 THEN NULL
            WHEN b.cancelling_at IS NOT NULL THEN 'cancelled'
            ELSE 'expired'
        END,
        step_total = CASE WHEN old.stepped THEN old.finished END,
        next_step_at = CASE WHEN old.stepped AND %(failed)s = 0 THEN now() END,
        cancelling_at = NULL,
        expiring_at = NULL,
        paused_at = NULL,
        paused_by = NULL,
        finalizing_at = NULL,
        finalizer = NULL,
        completed_at = NULL,
        cancelled_at = NULL,
        expired_at = NULL,
        output_file_id = NULL,
        error_file_id = NULL,
        earlier_files = CASE
            WHEN b.submitted_by IS NULL
            THEN b.earlier_files || array_remove(ARRAY[b.output_file_id, b.error_file_id], NULL)
            ELSE '{}'
        END,
        planned_output_id = CASE WHEN b.planned_output_id IS NOT NULL THEN %(planned_output)s::uuid END,
        summary = NULL,
        expires_at = CASE
            WHEN b.expires_at IS NOT NULL THEN now() + make_interval(secs => %(window_seconds)s::float8)
        END
    FROM old
    WHERE b.id = %(batch)s
    RETURNING b.id, b.expires_at, b.left_out, b.submitted_by
),
lane AS (
    SELECT n.id, batch.expires_at, batch.left_out
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR NO KEY UPDATE OF n
),
opened AS (
    UPDATE batchline.lanes AS n
    SET open = true,
        -- As in create_batch.
        deadline = coalesce(lane.expires_at, '9999-12-31 00:00:00+00'),
        next = CASE WHEN lane.left_out > 0 THEN n.total ELSE n.next END,
        drained = n.drained OR lane.left_out > 0
    FROM lane
    WHERE n.id = lane.id
),
dropped AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM old
    CROSS JOIN batch
    WHERE batch.submitted_by IS NOT NULL
      AND f.id IN (old.output_file_id, old.error_file_id)
      AND f.deleted_at IS NULL
),
counted AS (
    UPDATE batchline.operation_batches AS o
    SET retries = o.retries + 1,
        retried_children = o.retried_children + %(failed)s,
        retried_at = clock_timestamp(),
        counted_at = NULL
    FROM batch
    WHERE o.batch_id = batch.id
)
SELECT pg_notify('batchline', 'open ' || batch.id) IS NULL AS notified FROM batch

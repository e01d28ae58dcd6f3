-- retry_failed: put the failed children of an ended batch back, those with an attempt left, and open the batch again.
--
-- Their results become rows of retry_attempts, whole, so the history is kept and the invariant too: what had a result is
-- outstanding again, in free spans of the next attempt. Counters go back by what the results said, except for tokens and cost: they are spent. The batch is as if it
-- had never ended; its files are written again when it ends again, and the old ones are deleted as by a user, so that the
-- sweep clears them away. Returns how many were put back, which may be none: then nothing was changed.
--
-- Runs under lock_operation on a batch that has ended: no span is left, so no settle and no finalizer can run meanwhile.
-- Locks: the failed results, the lanes in id order, after the batch row.
WITH
failed AS (
    DELETE FROM batchline.results AS r
    USING batchline.lanes AS n
    WHERE n.batch_id = %(batch)s AND r.lane_id = n.id AND r.outcome = 'failed' AND r.attempt < %(max_attempts)s
    RETURNING r.*
),
history AS (
    INSERT INTO batchline.retry_attempts (batch_id, lane_id, ordinal, attempt, error_code, message, not_before, created_at)
    SELECT
        %(batch)s,
        lane_id,
        ordinal,
        attempt,
        coalesce('http_' || status_code, 'failed'),
        output,
        now(),
        finished_at
    FROM failed
),
again AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt)
    SELECT lane_id, %(batch)s, range_agg(int4range(ordinal, ordinal + 1)), attempt + 1
    FROM failed
    GROUP BY lane_id, attempt
),
tally AS (
    SELECT count(*)::integer AS children FROM failed
),
old AS (
    SELECT b.output_file_id, b.error_file_id FROM batchline.batches AS b WHERE b.id = %(batch)s
),
batch AS (
    UPDATE batchline.batches AS b
    SET failed = b.failed - tally.children,
        finalizing_at = NULL,
        finalizer = NULL,
        completed_at = NULL,
        paused_at = NULL,
        output_file_id = NULL,
        error_file_id = NULL,
        summary = NULL,
        expires_at = now() + make_interval(secs => %(window_seconds)s)
    FROM tally
    WHERE b.id = %(batch)s AND tally.children > 0
    RETURNING b.id, b.expires_at
),
lane AS (
    SELECT n.id, batch.expires_at
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR NO KEY UPDATE OF n
),
opened AS (
    UPDATE batchline.lanes AS n
    SET open = true, deadline = lane.expires_at
    FROM lane
    WHERE n.id = lane.id
),
dropped AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM old
    CROSS JOIN batch
    WHERE f.id IN (old.output_file_id, old.error_file_id) AND f.deleted_at IS NULL
),
counted AS (
    UPDATE batchline.operation_batches AS o
    SET retries = o.retries + 1,
        retried_children = o.retried_children + tally.children,
        retried_at = clock_timestamp(),
        -- What it has added to the totals stays there; what comes will be added at its next end.
        counted_at = NULL
    FROM tally
    CROSS JOIN batch
    WHERE o.batch_id = batch.id
)
SELECT
    tally.children,
    (SELECT pg_notify('batchline', 'open ' || batch.id) IS NULL FROM batch) AS notified
FROM tally

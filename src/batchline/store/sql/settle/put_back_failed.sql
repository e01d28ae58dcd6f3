-- put_back_failed: turn failed results of an ended batch back into work: those with fewer than `max_attempts` attempts (NULL:
-- any), one of these `codes` (NULL: any) and one of these `causes` (NULL: any). Returns their number. Their tokens and their
-- cost stay counted: they were spent.
--
-- Each becomes a row of retry_attempts, whole, and is outstanding again in a free span of the next attempt. So the history is
-- kept, and so is the invariant. `anew`: its attempts so far do not count against the maximum (`attempts_before`).
-- A span covers at most `span_items` ordinals, so that no claim has to rewrite a large multirange.
--
-- Runs under the lock on the batch row, before reopen_batch in the same transaction. The batch has ended and has no spans, so
-- no settle and no finalizer can run meanwhile. Locks: the results.
WITH
failed AS (
    DELETE FROM batchline.results AS r
    USING batchline.lanes AS n
    WHERE n.batch_id = %(batch)s
      AND r.lane_id = n.id
      AND r.outcome = 'failed'
      AND (%(max_attempts)s::integer IS NULL OR r.attempt < %(max_attempts)s::integer)
      AND (
          %(codes)s::text[] IS NULL
          OR batchline.failure_code_v1(r.status_code, r.output) = ANY (%(codes)s::text[])
      )
      AND (%(causes)s::text[] IS NULL OR r.cause = ANY (%(causes)s::text[]))
    RETURNING r.*
),
history AS (
    INSERT INTO batchline.retry_attempts (
        batch_id, lane_id, ordinal, attempt, error_code, message, not_before, created_at,
        cause, held_seconds, upstream_seconds, settling_seconds
    )
    SELECT
        %(batch)s, lane_id, ordinal, attempt, batchline.failure_code_v1(status_code, output), output,
        -- It could run at once. Nobody backed off until the retry.
        finished_at, finished_at,
        cause, held_seconds, upstream_seconds, settling_seconds
    FROM failed
),
uncounted AS (
    UPDATE batchline.failure_causes AS f
    SET failed = f.failed - gone.items
    FROM (SELECT cause, count(*)::integer AS items FROM failed GROUP BY cause) AS gone
    WHERE f.batch_id = %(batch)s AND f.key = gone.cause
),
again AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before)
    SELECT
        lane_id,
        %(batch)s,
        range_agg(int4range(ordinal, ordinal + 1)),
        attempt + 1,
        CASE WHEN %(anew)s THEN attempt ELSE 0 END
    FROM failed
    GROUP BY lane_id, attempt, ordinal / %(span_items)s::integer
)
SELECT count(*)::integer AS lines FROM failed

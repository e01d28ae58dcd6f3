-- reset_unfinished: a template: old requests of adopted batches that have no result are pending again, after as many failed
-- attempts as there were; or canceled, if their batch was cancelled or deleted after the cutover. Runs when every result is
-- written back. A request that is as it should be is not touched. Locks: these requests.
UPDATE {requests} AS request
SET {assignments}
FROM (
    SELECT
        r.id,
        CASE WHEN made.id IS NOT NULL AND made.cancelling_at IS NULL THEN 'pending' ELSE 'canceled' END AS state,
        coalesce(past.attempts, 0) AS retry_attempt,
        CASE WHEN past.not_before > now() THEN past.not_before END AS not_before,
        NULL::smallint AS response_status,
        NULL::text AS response_body,
        NULL::text AS error,
        coalesce(made.cancelling_at, now()) AS at,
        r.state AS old_state,
        r.retry_attempt AS old_retry_attempt
    FROM batchline.adopted_batches AS b
    LEFT JOIN batchline.batches AS made ON made.id = b.batch_id
    JOIN batchline.source_batches AS old ON old.id = b.batch_id
    JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
    LEFT JOIN (
        SELECT lane_id, ordinal, max(attempt) AS attempts, max(not_before) AS not_before
        FROM batchline.retry_attempts
        GROUP BY lane_id, ordinal
    ) AS past ON past.lane_id = n.lane_id AND past.ordinal = a.ordinal
    WHERE b.reason IS NULL
      -- A batch that was cancelled before the cutover is left as it was.
      AND old.cancelling_at IS NULL
      AND old.cancelled_at IS NULL
      AND r.state IN ('pending', 'claimed', 'processing')
) AS written
WHERE request.id = written.id
  AND (written.old_state, written.old_retry_attempt) <> (written.state, written.retry_attempt)

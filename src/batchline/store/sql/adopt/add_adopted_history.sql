-- add_adopted_history: failed attempts of the adopted items, one row each. The old tables keep only their number, and the
-- time before which the last one may not be repeated. Runs at the cutover. Locks: only its own rows.
INSERT INTO batchline.retry_attempts (batch_id, lane_id, ordinal, attempt, error_code, message, not_before, created_at)
SELECT
    b.batch_id,
    n.lane_id,
    a.ordinal,
    attempt,
    'before_adoption',
    'This attempt failed before the database was adopted. Its error was not recorded.',
    coalesce(r.not_before, r.claimed_at, now()),
    coalesce(r.claimed_at, r.not_before, now())
FROM batchline.adopted_batches AS b
JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
CROSS JOIN LATERAL generate_series(1, r.retry_attempt) AS attempt
WHERE b.reason IS NULL AND r.retry_attempt > 0

-- add_in_flight: list the requests that an old daemon had claimed and not finished. Some were sent, and run again. Those of
-- cancelled batches do not run again. Runs at the cutover. Locks: only its own rows.
INSERT INTO batchline.adopted_in_flight (batch_id, line_no, found_by, request_id, custom_id, state, claimed_at)
SELECT b.batch_id, a.line_no, 'cutover', r.id, l.custom_id, r.state, coalesce(r.started_at, r.claimed_at)
FROM batchline.adopted_batches AS b
JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
JOIN batchline.lines AS l ON l.file_no = a.file_no AND l.lane_no = a.lane_no AND l.ordinal = a.ordinal
WHERE b.reason IS NULL AND r.state IN ('claimed', 'processing')
ON CONFLICT (batch_id, line_no, found_by) DO UPDATE
SET request_id = excluded.request_id, state = excluded.state, claimed_at = excluded.claimed_at, found_at = now()

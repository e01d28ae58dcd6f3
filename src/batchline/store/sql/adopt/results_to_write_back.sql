-- results_to_write_back: results of adopted batches whose request, in a range of pages of the old table, is unfinished.
--
-- A result never changes, so this may run while workers do. A request that a write moves to a later page is finished then,
-- and not found again. Locks: none.
SELECT r.id, res.outcome::text, res.status_code, res.attempt, res.finished_at, res.output
FROM batchline.source_requests AS r
JOIN batchline.adopted_batches AS b ON b.batch_id = r.batch_id AND b.reason IS NULL
JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id AND a.file_no = b.file_no
JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
JOIN batchline.results AS res ON res.lane_id = n.lane_id AND res.line_no = a.line_no
WHERE r.position >= %(first)s::text::tid
  AND r.position < %(beyond)s::text::tid
  AND r.state IN ('pending', 'claimed', 'processing')

-- operation_children: the children of a governed batch with their outcomes, page by page, by number.
--
-- Reads the lines of one batch, which are few. A child that never ran becomes cancelled only when its batch is frozen;
-- until then it counts as pending, as in the batch's counters. Locks: none.
SELECT
    q.line_no,
    q.custom_id,
    CASE WHEN q.state IN ('canceled', 'expired') AND b.finalizing_at IS NULL THEN 'pending' ELSE q.state END,
    q.attempt,
    q.status_code,
    q.finished_at,
    r.output
FROM batchline.requests AS q
JOIN batchline.batches AS b ON b.id = q.batch_id
LEFT JOIN batchline.results AS r ON r.lane_id = q.lane_id AND r.line_no = q.line_no
WHERE q.batch_id = %(batch)s AND q.line_no > %(after)s
ORDER BY q.line_no
LIMIT %(limit)s

-- get_response: the one line of a batch that is a response, with its result and whether somebody works on it.
--
-- Returns no row for other batches, and for one whose results are being deleted. Locks: none.
SELECT
    l.body,
    r.outcome::text AS outcome,
    r.output,
    EXISTS (
        SELECT
        FROM batchline.spans AS s
        WHERE s.batch_id = b.id AND (s.worker_id IS NOT NULL OR s.task_id IS NOT NULL)
    ) AS running
FROM batchline.batches AS b
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.batch_id = b.id LIMIT 1) AS n
CROSS JOIN LATERAL (
    SELECT *
    FROM batchline.lines
    WHERE lines.file_no = n.file_no AND lines.lane_no = n.lane_no AND lines.ordinal = 0
    LIMIT 1
) AS l
LEFT JOIN batchline.results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
WHERE b.id = %(batch)s AND b.total = 1 AND b.endpoint = '/v1/responses' AND b.purging_at IS NULL

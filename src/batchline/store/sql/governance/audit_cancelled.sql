-- audit_cancelled: add audit records for the children of a governed batch that never ran and ended with it. Runs after
-- conclude, in its transaction.
INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, sequence_no, detail)
SELECT
    b.tenant,
    'system',
    'child.ended',
    b.id,
    l.line_no,
    jsonb_build_object(
        'status', 'CANCELLED',
        'code', CASE WHEN b.cancelling_at IS NULL THEN 'batch_expired' ELSE 'batch_cancelled' END
    )
FROM batchline.batches AS b
JOIN batchline.lanes AS n ON n.batch_id = b.id
JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
WHERE b.id = %(batch)s
  AND b.submitted_by IS NOT NULL
  AND NOT EXISTS (SELECT FROM batchline.results AS r WHERE r.lane_id = n.id AND r.line_no = l.line_no)
ORDER BY l.line_no

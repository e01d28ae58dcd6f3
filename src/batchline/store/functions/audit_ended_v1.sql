-- audit_ended: write the ends of children of a governed batch to the audit log, in the transaction that records them.
--
-- `line_nos` are lines whose results this transaction has just inserted. No locks.
CREATE FUNCTION batchline.audit_ended_v1(batch uuid, line_nos integer[]) RETURNS void
LANGUAGE sql VOLATILE
AS $$
INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, sequence_no, detail)
SELECT
    n.tenant,
    'system',
    'child.ended',
    n.batch_id,
    r.line_no,
    jsonb_build_object(
        'status', CASE r.outcome WHEN 'completed' THEN 'SUCCEEDED' ELSE 'FAILED' END,
        'attempt', r.attempt,
        'status_code', r.status_code
    )
FROM batchline.lanes AS n
JOIN batchline.results AS r ON r.lane_id = n.id AND r.line_no = ANY (line_nos)
WHERE n.batch_id = batch
ORDER BY r.line_no
$$;

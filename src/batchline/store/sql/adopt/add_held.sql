-- add_held: list the items that a dead worker of ours held, or a provider may work on, when an adoption was rolled back:
-- some were sent, and old daemons run them again. Locks: only its own rows.
INSERT INTO batchline.adopted_in_flight (batch_id, line_no, found_by, custom_id, state, claimed_at)
SELECT s.batch_id, l.line_no, 'rollback', l.custom_id, 'claimed', coalesce(w.lease_until, s.claimed_at)
FROM batchline.adopted_lanes AS n
JOIN batchline.spans AS s
    ON s.lane_id = n.lane_id
   AND s.batch_id = n.batch_id
   AND (s.worker_id IS NOT NULL OR s.task_id IS NOT NULL OR s.submission IS NOT NULL)
LEFT JOIN batchline.workers AS w ON w.id = s.worker_id
JOIN batchline.lanes AS lane ON lane.id = s.lane_id
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
JOIN batchline.lines AS l
    ON l.file_no = lane.file_no
   AND l.lane_no = lane.lane_no
   AND l.ordinal >= lower(piece)
   AND l.ordinal < upper(piece)
ON CONFLICT (batch_id, line_no, found_by) DO UPDATE SET found_at = now()

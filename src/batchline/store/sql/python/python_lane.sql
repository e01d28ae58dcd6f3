-- python_lane: the lane of a batch with this url, and whether its lines can still get results.
--
-- `frozen`: no result comes any more. `ending` is the code of lines that never ran; NULL: there are none. Locks: none.
SELECT
    n.id,
    n.file_no,
    n.lane_no,
    n.total,
    b.finalizing_at IS NOT NULL OR b.ended_at IS NOT NULL AS frozen,
    CASE
        WHEN b.finalizing_at IS NULL THEN NULL
        WHEN b.cancelling_at IS NOT NULL THEN 'batch_cancelled'
        WHEN b.expiring_at IS NOT NULL THEN 'batch_expired'
    END AS ending,
    b.purging_at IS NOT NULL AS purged
FROM batchline.batches AS b
JOIN batchline.current_lanes AS n ON n.batch_id = b.id
WHERE b.id = %(batch)s AND n.url = %(url)s

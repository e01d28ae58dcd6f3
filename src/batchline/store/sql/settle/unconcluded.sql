-- unconcluded: closing batches that a dead worker left: no live worker holds anything of them. It died between its
-- last settle and concluding.
SELECT b.id
FROM batchline.batches AS b
WHERE b.finalizing_at IS NULL
  AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL)
  AND NOT EXISTS (
      SELECT
      FROM batchline.spans AS s
      JOIN batchline.workers AS w ON w.id = s.worker_id
      WHERE s.batch_id = b.id AND w.lease_until >= now()
  )
LIMIT 100

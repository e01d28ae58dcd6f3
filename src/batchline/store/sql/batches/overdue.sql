-- overdue: batches past their deadline that are still open.
SELECT id
FROM batchline.batches
WHERE expires_at <= now()
  AND finalizing_at IS NULL
  AND ended_at IS NULL
  AND cancelling_at IS NULL
  AND expiring_at IS NULL
ORDER BY expires_at
LIMIT 100

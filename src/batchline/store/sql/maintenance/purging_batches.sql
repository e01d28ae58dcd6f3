-- purging_batches: a page of batches whose purge has started and not finished.
SELECT id
FROM batchline.batches
WHERE purging_at IS NOT NULL
  AND purged_at IS NULL
  AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
ORDER BY id
LIMIT %(limit)s

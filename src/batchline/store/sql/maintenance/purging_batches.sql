-- purging_batches: batches of which something may be left to clear away, a page.
SELECT id
FROM batchline.batches
WHERE purging_at IS NOT NULL
  AND purged_at IS NULL
  AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
ORDER BY id
LIMIT %(limit)s

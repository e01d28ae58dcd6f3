-- running_batches: a page of a tenant's batches that are not frozen yet, and whether each is being closed. The caller closes
-- and concludes them. Reads the index of all such batches. Locks: none.
SELECT id, cancelling_at IS NOT NULL OR expiring_at IS NOT NULL AS closing
FROM batchline.batches
WHERE finalizing_at IS NULL AND ended_at IS NULL AND tenant = %(tenant)s
  AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
ORDER BY id
LIMIT %(limit)s

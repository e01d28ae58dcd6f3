-- deleted_batches: a page of a tenant's batches that were deleted and of which something may be left. Locks: none.
SELECT batch_id
FROM batchline.deleted_batches
WHERE tenant = %(tenant)s AND (%(after)s::uuid IS NULL OR batch_id > %(after)s::uuid)
ORDER BY batch_id
LIMIT %(limit)s

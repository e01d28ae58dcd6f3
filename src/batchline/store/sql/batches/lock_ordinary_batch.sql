-- lock_ordinary_batch: lock a batch against changes until the transaction ends, unless it is governed. `tenant`: only that
-- tenant's; NULL: any. Later statements of the transaction see everything that was committed before the lock was granted.
--
-- Locks: the batch row, like close and settle.
SELECT b.id
FROM batchline.batches AS b
WHERE b.id = %(batch)s AND b.submitted_by IS NULL AND (%(tenant)s::text IS NULL OR b.tenant = %(tenant)s::text)
FOR NO KEY UPDATE

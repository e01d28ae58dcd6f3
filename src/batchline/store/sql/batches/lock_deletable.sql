-- lock_deletable: lock a batch that is to be deleted, and tell its input file. Returns no row if it has not ended and `force` is
-- false, and for governed batches, as delete_batch.
--
-- The caller then locks the input (lock_unused_input), and deletes after that: a deletion locks the row of the tenant in a
-- trigger, and whoever has that lock must wait for no file.
--
-- Locks: the batch row, as delete_batch.
SELECT file_id
FROM batchline.batches
WHERE id = %(batch)s AND submitted_by IS NULL AND (ended_at IS NOT NULL OR %(force)s::boolean)
FOR UPDATE

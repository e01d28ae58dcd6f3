-- retry_finalizing: reset the back-off of a failed finalization. A running one is not affected.
--
-- Locks: the batch row.
UPDATE batchline.batches
SET finalize_failures = 0, finalize_after = NULL
WHERE id = %(batch)s AND finalizing_at IS NOT NULL AND ended_at IS NULL AND finalize_failures > 0

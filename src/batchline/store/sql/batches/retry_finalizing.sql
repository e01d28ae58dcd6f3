-- retry_finalizing: somebody asks for this batch now, so its back-off begins anew. Whoever finalizes it is not disturbed.
--
-- Locks: the batch row.
UPDATE batchline.batches
SET finalize_failures = 0, finalize_after = NULL
WHERE id = %(batch)s AND finalizing_at IS NOT NULL AND ended_at IS NULL AND finalize_failures > 0

-- withhold_finalizing: no worker writes files of these batches for a day: they will be erased before. A finalizer that has
-- begun may finish. Locks: the batches' rows, skipping locked ones.
WITH
batch AS (
    SELECT id
    FROM batchline.batches
    WHERE id = ANY (%(batches)s::uuid[]) AND ended_at IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE batchline.batches AS b
SET finalize_after = now() + interval '1 day'
FROM batch
WHERE b.id = batch.id

-- resume: open the lanes of a paused batch again. Returns no row when it is not paused.
--
-- Locks: the batch row, then its lanes.
WITH
batch AS (
    UPDATE batches
    SET paused_at = NULL
    WHERE id = %(batch)s
      AND paused_at IS NOT NULL
      AND finalizing_at IS NULL
      AND cancelling_at IS NULL
      AND expiring_at IS NULL
    RETURNING id
),
opened AS (
    UPDATE lanes AS n
    SET open = true
    FROM batch
    WHERE n.batch_id = batch.id
)
SELECT id, pg_notify('batchline', 'open ' || id) IS NULL AS told FROM batch

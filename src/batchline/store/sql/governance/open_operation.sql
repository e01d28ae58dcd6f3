-- open_operation: if a governed batch no longer waits for an approval or a release, remove its hold and open its lanes,
-- unless it is paused.
--
-- Runs under lock_operation. Locks: the lanes in id order, after the batch row, like close.
WITH
batch AS (
    UPDATE batchline.batches AS b
    SET held_at = NULL
    FROM batchline.operation_batches AS o
    WHERE b.id = %(batch)s
      AND o.batch_id = b.id
      AND b.held_at IS NOT NULL
      AND NOT o.held
      AND o.approval <> 'pending'
      AND b.finalizing_at IS NULL
      AND b.cancelling_at IS NULL
      AND b.expiring_at IS NULL
    RETURNING b.id, b.paused_at
),
lane AS (
    SELECT n.id
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id AND batch.paused_at IS NULL
    ORDER BY n.id
    FOR NO KEY UPDATE OF n
),
opened AS (
    UPDATE batchline.lanes AS n
    SET open = true
    FROM lane
    WHERE n.id = lane.id
)
SELECT id, pg_notify('batchline', 'open ' || id) IS NULL AS notified FROM batch

-- close: cancel, expire or pause a batch. Its lanes leave the claim's index; O(lanes).
--
-- What is in flight may finish; free spans stay where they are, so the invariant holds, and no claim
-- takes them from a closed lane. After a cancel or an expiry the caller runs conclude.
-- Returns no row when the batch is past closing (it is finalizing, has ended, or is closing already).
--
-- Locks: the batch row, then its lanes in id order, as claims take them: in any other order a claim of two
-- of them could deadlock with this. Claims hold lanes and never wait for a batch; settles hold spans and wait
-- for lanes only with the rows of their batches locked; so no deadlock is possible. All lanes, not those that are open: a resume that we waited for has
-- opened them since, and under READ COMMITTED this statement still sees them closed.
WITH
batch AS (
    UPDATE batchline.batches
    SET cancelling_at = CASE %(reason)s::text WHEN 'cancel' THEN now() END,
        expiring_at = CASE %(reason)s::text WHEN 'expire' THEN now() END,
        paused_at = CASE %(reason)s::text WHEN 'pause' THEN now() END,
        paused_by = NULL
    WHERE id = %(batch)s
      AND finalizing_at IS NULL
      AND ended_at IS NULL
      AND cancelling_at IS NULL
      AND expiring_at IS NULL
      AND (%(reason)s::text <> 'pause' OR paused_at IS NULL)
    RETURNING id
),
lane AS (
    SELECT n.id
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id
    ORDER BY n.id
    FOR NO KEY UPDATE OF n
),
shut AS (
    UPDATE batchline.lanes AS n
    SET open = false
    FROM lane
    WHERE n.id = lane.id
)
SELECT id, pg_notify('batchline', 'closed ' || id) IS NULL AS notified FROM batch

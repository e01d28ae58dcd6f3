-- resume: open the lanes of a paused batch again, unless the batch is also held; the release then opens them.
-- Returns no row when it is not paused.
--
-- Failures so far are noted, so that the batch does not pause again because of them. The function does that after it has
-- locked the batch row: this statement's own snapshot may lack the failures of a settle that it has waited for.
--
-- Locks: the batch row, then its lanes in id order, as claims take them.
WITH
noted AS MATERIALIZED (
    SELECT b.id, batchline.note_failures_v1(b.id)
    FROM batchline.batches AS b
    WHERE b.id = %(batch)s AND b.paused_at IS NOT NULL
),
batch AS (
    UPDATE batchline.batches
    SET paused_at = NULL, paused_by = NULL
    WHERE id = (SELECT noted.id FROM noted)
      AND paused_at IS NOT NULL
      AND finalizing_at IS NULL
      AND cancelling_at IS NULL
      AND expiring_at IS NULL
    RETURNING id, held_at
),
lane AS (
    SELECT n.id
    FROM batchline.lanes AS n
    JOIN batch ON batch.id = n.batch_id AND batch.held_at IS NULL
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

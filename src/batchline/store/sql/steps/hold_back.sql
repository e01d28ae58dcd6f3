-- hold_back: let a new batch run in steps: no line of it runs before begin_step, and a first step is due now. Lines with a
-- reused answer have ended; those that reuse has put into spans are held back with the others.
--
-- Runs in the transaction that creates the batch, so nobody else sees it before. A batch whose answers are all reused is
-- frozen already, and stays as it is. Locks: only its own rows.
WITH
batch AS (
    UPDATE batchline.batches AS b
    SET step_total = b.completed, next_step_at = now()
    WHERE b.id = %(batch)s AND b.finalizing_at IS NULL
    RETURNING b.id
),
span AS (
    UPDATE batchline.spans AS s SET available_at = '9999-12-31 00:00:00+00' FROM batch WHERE s.batch_id = batch.id
)
UPDATE batchline.lanes AS n SET drained = true FROM batch WHERE n.batch_id = batch.id

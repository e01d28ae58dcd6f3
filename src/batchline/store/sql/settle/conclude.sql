-- conclude, 2 of 2: if no live worker holds anything of a closing batch any more, freeze it.
--
-- Its spans go, so that a late verdict finds nothing to change, and finalizing begins. Returns the batch
-- if it was frozen now, and whether it is a governed one: then audit_cancelled comes next in the transaction.
--
-- Locks: spans that were made while part 1 waited, but without waiting for any. Whoever has one locked is
-- about to settle it and waits for the batch row, which is ours: to wait for each other would be a deadlock.
-- It will see that the batch is closing, and conclude after us.
WITH
span AS (
    SELECT id, worker_id FROM batchline.spans WHERE batch_id = %(batch)s FOR UPDATE SKIP LOCKED
),
frozen AS (
    UPDATE batchline.batches AS b
    SET finalizing_at = now()
    WHERE b.id = %(batch)s
      AND b.finalizing_at IS NULL
      AND (SELECT count(*) FROM span) = (SELECT count(*) FROM batchline.spans WHERE batch_id = %(batch)s)
      AND NOT EXISTS (
          SELECT
          FROM span
          JOIN batchline.workers AS w ON w.id = span.worker_id
          WHERE w.lease_until >= now()
      )
    RETURNING b.id, b.submitted_by
),
dropped AS (
    DELETE FROM batchline.spans AS s USING frozen WHERE s.batch_id = frozen.id
)
SELECT id, submitted_by IS NOT NULL AS governed FROM frozen

-- conclude, 2 of 2: if no live worker holds anything of a closing batch any more, freeze it.
--
-- Its spans go, so that a late verdict finds nothing to change, and finalizing begins. Returns the batch
-- if it was frozen now.
WITH
frozen AS (
    UPDATE batches AS b
    SET finalizing_at = now()
    WHERE b.id = %(batch)s
      AND b.finalizing_at IS NULL
      AND NOT EXISTS (
          SELECT
          FROM spans AS s
          JOIN workers AS w ON w.id = s.worker_id
          WHERE s.batch_id = b.id AND w.lease_until >= now()
      )
    RETURNING b.id
),
dropped AS (
    DELETE FROM spans AS s USING frozen WHERE s.batch_id = frozen.id
)
SELECT id FROM frozen

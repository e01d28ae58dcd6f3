-- conclude, 1 of 2: lock the spans and then the row of a batch that is being cancelled or has expired.
--
-- Statements of their own because of READ COMMITTED: the second one must see what was committed while
-- this one waited for the locks. With one statement, two workers that settle the last two spans each see
-- the other's, and nobody concludes.
WITH
span AS (
    SELECT id FROM batchline.spans WHERE batch_id = %(batch)s ORDER BY id FOR UPDATE
)
SELECT id
FROM batchline.batches
WHERE id = %(batch)s
  AND (cancelling_at IS NOT NULL OR expiring_at IS NOT NULL)
  AND finalizing_at IS NULL
  AND (SELECT count(*) FROM span) >= 0
FOR UPDATE

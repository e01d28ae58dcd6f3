-- stale_collections: the urls of stages that have collected results of this batch, and would have to collect again after a
-- retry of the lines that were put back. A retried line may emit others, so each stage but those that collect counts, and
-- of these the one that the stage collects from. Runs after put_back_unrun and put_back_failed in the same transaction: the
-- batch had ended, so all its spans are theirs. Locks: none.
SELECT c.stage ->> 'url' AS url
FROM batchline.batches AS b
CROSS JOIN LATERAL jsonb_array_elements(b.settings -> 'collects') WITH ORDINALITY AS c (stage, nth)
WHERE b.id = %(batch)s
  AND c.nth <= b.collected
  AND EXISTS (
      SELECT
      FROM batchline.spans AS s
      JOIN batchline.lanes AS n ON n.id = s.lane_id
      WHERE s.batch_id = b.id
        AND (
            n.url = c.stage ->> 'source'
            OR NOT EXISTS (
                SELECT
                FROM jsonb_array_elements(b.settings -> 'collects') AS other (stage)
                WHERE other.stage ->> 'url' = n.url
            )
        )
  )
ORDER BY c.nth

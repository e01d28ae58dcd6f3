-- unfrozen: up to `limit` batches whose lines all have an outcome, but whose finalizing has not begun. There should be
-- none: the last settle begins it. Looks at every running batch by the index batches_running, once in five to ten
-- minutes: one probe for its counters, and one for a span if these are complete. Locks: none.
SELECT b.id
FROM batchline.batches AS b
CROSS JOIN LATERAL (
    SELECT
        coalesce(
            (
                SELECT c.completed + c.failed - c.added
                FROM batchline.counters AS c
                WHERE c.batch_id = b.id
                ORDER BY c.seq DESC
                LIMIT 1
            ),
            b.completed + b.failed
        ) AS ended
) AS now
WHERE b.finalizing_at IS NULL
  AND b.ended_at IS NULL
  AND NOT b.accepting
  AND now.ended + b.left_out = b.total
  AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.batch_id = b.id)
LIMIT %(limit)s

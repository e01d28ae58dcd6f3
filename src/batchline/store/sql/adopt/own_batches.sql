-- own_batches: batches that were created here since the cutover, and so are unknown in the old tables. Locks: none.
SELECT b.id, b.total, b.ended_at IS NULL
FROM batchline.batches AS b
CROSS JOIN batchline.adoption AS adoption
WHERE b.created_at >= adoption.cutover_at
  AND NOT EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = b.id)
ORDER BY b.created_at, b.id

-- ended_before: a tenant's batches that ended longer ago than `older_than`, the oldest first. Not governed ones, whose
-- history is kept, nor adopted ones, which a rollback needs. No locks.
SELECT b.id
FROM batchline.batches AS b
WHERE b.ended_at < now() - %(older_than)s::interval
  AND b.tenant = %(tenant)s
  AND b.submitted_by IS NULL
  AND NOT EXISTS (SELECT FROM batchline.adopted_batches AS a WHERE a.batch_id = b.id)
ORDER BY b.ended_at

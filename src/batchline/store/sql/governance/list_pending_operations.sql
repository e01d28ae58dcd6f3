-- list_pending_operations: governed batches of a tenant that wait for an approval, newest first, page by page; of all
-- users or of one. Batches that were cancelled or expired before a decision are not included.
--
-- `after` is the last batch of the previous page, or NULL. Uses the partial index of undecided batches, however many
-- others there are. The plan is generic, so the conditions of that index must be constants here. Locks: none.
SELECT *
FROM (
    SELECT *
    FROM batchline.governed_batches
    WHERE tenant = %(tenant)s
      AND approval = 'pending'
      AND finalizing_at IS NULL
      AND (created_at, id) < (
          coalesce((SELECT a.created_at FROM batchline.operation_batches AS a WHERE a.batch_id = %(after)s::uuid), 'infinity'),
          coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      )
      AND (%(user)s::text IS NULL OR user_id = %(user)s::text)
      AND (%(operation)s::text IS NULL OR operation = %(operation)s::text)
    ORDER BY created_at DESC, id DESC
    LIMIT 1001
) AS page
LIMIT %(limit)s

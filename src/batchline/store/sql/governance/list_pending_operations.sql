-- list_pending_operations: governed batches of a tenant that wait for an approval, newest first, page by page; of all users,
-- or of one. What was cancelled or expired before anybody decided waits for nobody.
--
-- `after` is the last batch of the page before, or NULL. By the partial index of those that were never decided, however
-- many there are beside them: the plan is made once for all parameters, so what it looks for stands here as a constant.
-- Locks: none.
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

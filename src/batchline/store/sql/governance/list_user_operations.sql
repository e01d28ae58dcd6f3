-- list_user_operations: governed batches of one user, newest first, page by page.
--
-- `after` is the last batch of the previous page, or NULL. Reads one range of an index, however far the page is from
-- the start. The inner LIMIT is a constant for the reason given in list_files_newest. Locks: none.
SELECT *
FROM (
    SELECT *
    FROM batchline.governed_batches
    WHERE tenant = %(tenant)s
      AND user_id = %(user)s
      AND (created_at, id) < (
          coalesce((SELECT a.created_at FROM batchline.operation_batches AS a WHERE a.batch_id = %(after)s::uuid), 'infinity'),
          coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      )
      AND (%(operation)s::text IS NULL OR operation = %(operation)s::text)
      AND (%(approval)s::text IS NULL OR approval = %(approval)s::text)
    ORDER BY created_at DESC, id DESC
    LIMIT 1001
) AS page
LIMIT %(limit)s

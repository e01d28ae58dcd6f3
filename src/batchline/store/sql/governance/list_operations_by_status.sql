-- list_operations_by_status: governed batches of a tenant that have a status, newest first, page by page. Those that wait for
-- an approval are in list_pending_operations.
--
-- `after` is the last batch of the previous page, or NULL. Reads one range of the index batches_status, however far the
-- page is from the start. The inner LIMIT is a constant for the reason given in list_files_newest. Locks: none.
SELECT *
FROM (
    SELECT g.*
    FROM batchline.batches AS b
    JOIN batchline.governed_batches AS g ON g.id = b.id
    WHERE b.tenant = %(tenant)s
      AND b.submitted_by IS NOT NULL
      AND batchline.governed_status(b.finalizing_at, b.completed, b.failed) = %(status)s::text
      AND (b.created_at, b.id) < (
          coalesce((SELECT a.created_at FROM batchline.batches AS a WHERE a.id = %(after)s::uuid), 'infinity'),
          coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      )
      AND (%(status)s::text <> 'IN_PROGRESS' OR g.approval <> 'pending')
      AND (%(operation)s::text IS NULL OR g.operation = %(operation)s::text)
      AND (%(approval)s::text IS NULL OR g.approval = %(approval)s::text)
    ORDER BY b.created_at DESC, b.id DESC
    LIMIT 1001
) AS page
LIMIT %(limit)s

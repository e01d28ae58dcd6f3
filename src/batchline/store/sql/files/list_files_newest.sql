-- list_files_newest: a tenant's files, newest first, page by page, all or those of one purpose.
--
-- `after_at` and `after` belong to the last file of the previous page, or are NULL. Reads one range of an index,
-- however far the page is from the start. The inner LIMIT is the largest page as a constant: with only a parameter, the
-- planner expects a tenth of all rows and sorts them. Locks: none.
SELECT *
FROM (
    SELECT
        id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
    FROM batchline.files
    WHERE tenant = %(tenant)s
      AND (created_at, id) < (
          coalesce(%(after_at)s::timestamptz, 'infinity'),
          coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000')
      )
      AND deleted_at IS NULL
      AND purpose NOT IN ('operation', 'operation_output')
      AND (expires_at IS NULL OR expires_at > now())
      AND (%(purpose)s::text IS NULL OR purpose = %(purpose)s::text)
    ORDER BY created_at DESC, id DESC
    LIMIT 10001
) AS file
LIMIT %(limit)s

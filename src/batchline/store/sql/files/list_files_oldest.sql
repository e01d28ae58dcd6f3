-- list_files_oldest: a tenant's files, oldest first, page by page, all or those of one purpose.
--
-- `after_at` and `after` are of the last file of the page before, or NULL. One range of an index, however far the page
-- is from the start: the longest page stands inside as a number, for with a parameter alone the planner takes a page for
-- a tenth of all there is, and sorts that. Locks: none.
SELECT *
FROM (
    SELECT
        id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
    FROM batchline.files
    WHERE tenant = %(tenant)s
      AND (created_at, id) > (
          coalesce(%(after_at)s::timestamptz, '-infinity'),
          coalesce(%(after)s::uuid, '00000000-0000-0000-0000-000000000000')
      )
      AND deleted_at IS NULL
      AND purpose NOT IN ('operation', 'operation_output')
      AND (expires_at IS NULL OR expires_at > now())
      AND (%(purpose)s::text IS NULL OR purpose = %(purpose)s::text)
    ORDER BY created_at ASC, id ASC
    LIMIT 10001
) AS file
LIMIT %(limit)s

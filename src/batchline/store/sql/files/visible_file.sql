-- visible_file: a file as its tenant sees it: a file of another tenant, a deleted one and one whose time is over
-- are not there, nor are those of governed batches. One read by primary key.
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM batchline.files
WHERE id = %(file)s
  AND tenant = %(tenant)s
  AND deleted_at IS NULL
  AND purpose NOT IN ('operation', 'operation_output')
  AND (expires_at IS NULL OR expires_at > now())

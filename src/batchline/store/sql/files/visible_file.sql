-- visible_file: a file that its tenant can see, by primary key. Files of other tenants, deleted and expired files, and
-- files of governed batches are not visible.
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM batchline.files
WHERE id = %(file)s
  AND tenant = %(tenant)s
  AND deleted_at IS NULL
  AND purpose NOT IN ('operation', 'operation_output')
  AND (expires_at IS NULL OR expires_at > now())

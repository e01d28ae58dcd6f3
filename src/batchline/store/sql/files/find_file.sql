-- find_file: the newest visible input file of a tenant that a command created from this content.
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM batchline.files
WHERE tenant = %(tenant)s
  AND digest = %(digest)s
  AND object_key IS NULL
  AND deleted_at IS NULL
  AND (expires_at IS NULL OR expires_at > now())
ORDER BY created_at DESC, id DESC
LIMIT 1

-- list_files_oldest: a tenant's files, oldest first, page by page, all or those of one purpose.
--
-- `after` is the last file of the page before. Its row outlives its deletion, so a page that is asked for after
-- that is still the next one. Locks: none.
SELECT
    f.id, f.tenant, f.purpose, f.filename, f.bytes, f.line_count, f.object_key, f.created_at, f.expires_at, f.errors,
    f.deleted_at
FROM files AS f
LEFT JOIN files AS a ON a.id = %(after)s::uuid AND a.tenant = %(tenant)s
WHERE f.tenant = %(tenant)s
  AND f.deleted_at IS NULL
  AND (f.expires_at IS NULL OR f.expires_at > now())
  AND (%(purpose)s::text IS NULL OR f.purpose = %(purpose)s::text)
  AND (%(after)s::uuid IS NULL OR (f.created_at, f.id) > (a.created_at, a.id))
ORDER BY f.created_at ASC, f.id ASC
LIMIT %(limit)s

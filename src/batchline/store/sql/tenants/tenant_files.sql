-- tenant_files: a page of deleted files of a tenant whose data may still exist, and over which there is no batch. `after` is
-- the last file of the previous page. Locks: none; no new batch can be created over these files (delete_file).
SELECT f.id, f.no, f.object_key
FROM batchline.files AS f
LEFT JOIN batchline.files AS a ON a.id = %(after)s::uuid
WHERE f.tenant = %(tenant)s
  AND f.deleted_at IS NOT NULL
  AND f.purged_at IS NULL
  AND (%(after)s::uuid IS NULL OR (f.created_at, f.id) > (a.created_at, a.id))
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id)
ORDER BY f.created_at, f.id
LIMIT %(limit)s

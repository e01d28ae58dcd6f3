-- get_file: one read by primary key, also of a file that was deleted.
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM batchline.files
WHERE id = %(file)s

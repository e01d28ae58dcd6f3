-- get_file: a file by primary key, even if it is deleted.
SELECT
    id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at, errors, deleted_at
FROM batchline.files
WHERE id = %(file)s

-- get_file: one read by primary key.
SELECT id, tenant, purpose, filename, bytes, line_count, object_key, created_at, expires_at
FROM files
WHERE id = %(file)s

-- get_upload: an upload of a tenant, by primary key.
SELECT
    id, tenant, purpose, filename, mime_type, bytes, expires_after, created_at, expires_at, completed_at, cancelled_at,
    file_id, expires_at <= now() AS expired
FROM batchline.uploads
WHERE id = %(upload)s AND tenant = %(tenant)s

-- add_upload: start an upload in parts.
INSERT INTO batchline.uploads (id, tenant, purpose, filename, mime_type, bytes, expires_after, expires_at)
VALUES (
    %(id)s,
    %(tenant)s,
    %(purpose)s,
    %(filename)s,
    %(mime_type)s,
    %(bytes)s,
    %(expires_after)s,
    now() + make_interval(secs => %(lifetime)s)
)
RETURNING
    id, tenant, purpose, filename, mime_type, bytes, expires_after, created_at, expires_at, completed_at, cancelled_at,
    file_id, false AS expired

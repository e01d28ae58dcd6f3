-- tenant_parts: cancel the pending uploads of a tenant, so that they accept no more parts, and list a page of the parts of
-- all its uploads. Locks: the pending uploads, skipping those that are being completed.
WITH
pending AS (
    SELECT id
    FROM batchline.uploads
    WHERE tenant = %(tenant)s AND completed_at IS NULL AND cancelled_at IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
cancelled AS (
    UPDATE batchline.uploads AS u
    SET cancelled_at = now()
    FROM pending
    WHERE u.id = pending.id
)
SELECT p.id, p.object_key
FROM batchline.uploads AS u
JOIN batchline.upload_parts AS p ON p.upload_id = u.id
WHERE u.tenant = %(tenant)s
LIMIT %(limit)s

-- cancel_upload: no file will be made of it. Returns no row when it has ended, or is being completed right now.
--
-- Locks: the upload's row, not waiting for one that is being completed.
WITH
upload AS (
    SELECT id
    FROM batchline.uploads
    WHERE id = %(upload)s
      AND tenant = %(tenant)s
      AND completed_at IS NULL
      AND cancelled_at IS NULL
      AND expires_at > now()
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE batchline.uploads AS u
SET cancelled_at = now()
FROM upload
WHERE u.id = upload.id
RETURNING u.id

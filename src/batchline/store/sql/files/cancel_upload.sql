-- cancel_upload: cancel an upload. Returns no row if it has ended or is being completed.
--
-- Locks: the upload's row. Does not wait if the upload is being completed.
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

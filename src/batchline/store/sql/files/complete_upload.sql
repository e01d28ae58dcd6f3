-- complete_upload: mark an upload as completed, in the transaction that adds its file. Returns no row if it has already
-- ended.
--
-- Locks: the upload's row until the file is committed. A concurrent completion waits, and then finds it completed.
UPDATE batchline.uploads
SET completed_at = now(), file_id = %(file)s
WHERE id = %(upload)s AND completed_at IS NULL AND cancelled_at IS NULL
RETURNING id

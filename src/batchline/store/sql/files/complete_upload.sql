-- complete_upload: an upload has become a file; in the transaction that makes the file. Returns no row when it has
-- ended before.
--
-- Locks: the upload's row until the file is there. Who else completes it waits, and finds it completed.
UPDATE batchline.uploads
SET completed_at = now(), file_id = %(file)s
WHERE id = %(upload)s AND completed_at IS NULL AND cancelled_at IS NULL
RETURNING id

-- ordered_file: lock the input file of a new batch, as its tenant sees it, and read its errors.
--
-- Locks: the file's row, so that it cannot be deleted before the batch that needs it exists.
SELECT no, purpose, errors
FROM batchline.files
WHERE id = %(file)s
  AND tenant = %(tenant)s
  AND deleted_at IS NULL
  AND (expires_at IS NULL OR expires_at > now())
FOR KEY SHARE

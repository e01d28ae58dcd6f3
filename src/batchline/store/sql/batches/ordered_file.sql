-- ordered_file: the file that a batch is ordered over, as its tenant sees it, and what is wrong with it.
--
-- Locks: the file's row, so that it cannot be deleted before the batch is there to need it.
SELECT no, purpose, errors
FROM batchline.files
WHERE id = %(file)s
  AND tenant = %(tenant)s
  AND deleted_at IS NULL
  AND (expires_at IS NULL OR expires_at > now())
FOR KEY SHARE

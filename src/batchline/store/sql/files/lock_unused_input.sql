-- lock_unused_input: lock an input file that a command has ingested. Files that clients have uploaded are theirs to delete.
--
-- Locks: the file's row FOR UPDATE, which waits for transactions that create a batch over it (create_batch, FOR KEY
-- SHARE). The statement after this one sees these batches.
SELECT f.id
FROM batchline.files AS f
WHERE f.id = %(file)s
  AND f.purpose = 'batch'
  AND f.object_key IS NULL
  AND f.deleted_at IS NULL
  -- A rollback and a second cutover need the lines of adopted files.
  AND NOT EXISTS (SELECT FROM batchline.adopted_files AS a WHERE a.file_no = f.no)
FOR UPDATE OF f

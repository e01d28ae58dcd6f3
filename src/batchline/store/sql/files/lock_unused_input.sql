-- lock_unused_input: lock an input file that a command has ingested. Files that clients have uploaded are theirs to delete.
--
-- Locks: the file's row FOR UPDATE, which waits for transactions that create a batch over it (create_batch, FOR KEY
-- SHARE). The statement after this one sees these batches.
SELECT id
FROM batchline.files
WHERE id = %(file)s AND purpose = 'batch' AND object_key IS NULL AND deleted_at IS NULL
FOR UPDATE

-- delete_file: hide a file at once; maintenance deletes its data later. Returns no row if the file does not exist.
--
-- Locks: the file's row FOR UPDATE, which waits for transactions that create a batch over it (create_batch, FOR KEY
-- SHARE). So once this is committed, every batch that needs the lines is visible, and no new one can be created.
WITH
file AS (
    SELECT id
    FROM batchline.files
    WHERE id = %(file)s
      AND tenant = %(tenant)s
      AND deleted_at IS NULL
      AND purpose NOT IN ('operation', 'operation_output')
      AND (expires_at IS NULL OR expires_at > now())
    FOR UPDATE
)
UPDATE batchline.files AS f
SET deleted_at = now()
FROM file
WHERE f.id = file.id
RETURNING f.id

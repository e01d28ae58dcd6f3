-- delete_tenant_files: hide a chunk of files of a tenant that is being erased. Returns their number.
--
-- Locks: their rows FOR UPDATE, as delete_file, skipping locked ones.
WITH
file AS (
    SELECT id
    FROM batchline.files
    WHERE tenant = %(tenant)s AND deleted_at IS NULL
    ORDER BY created_at, id
    LIMIT %(chunk)s
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM file
    WHERE f.id = file.id
    RETURNING 1
)
SELECT count(*)::integer FROM deleted

-- stored_bytes: the number of files in the object store, and their bytes. No locks; reads all files.
SELECT count(*), coalesce(sum(bytes), 0)::bigint
FROM batchline.files
WHERE object_key IS NOT NULL AND purged_at IS NULL

-- upload_parts: the parts of an upload.
SELECT id, bytes, object_key
FROM batchline.upload_parts
WHERE upload_id = %(upload)s

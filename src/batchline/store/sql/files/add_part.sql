-- add_part: record a part whose object is stored. Returns no row if the upload accepts no more: it has ended or
-- expired, or has too many parts or bytes.
--
-- Clients may send parts again, so together they may be larger than the file. `max_bytes` limits the space of an
-- upload, not the size of its file. Locks: the upload's row FOR KEY SHARE, so parts can arrive concurrently.
WITH
upload AS (
    SELECT u.id
    FROM batchline.uploads AS u
    WHERE u.id = %(upload)s
      AND u.tenant = %(tenant)s
      AND u.completed_at IS NULL
      AND u.cancelled_at IS NULL
      AND u.expires_at > now()
    FOR KEY SHARE
)
INSERT INTO batchline.upload_parts (id, upload_id, bytes, object_key)
SELECT %(id)s, upload.id, %(bytes)s, %(object_key)s
FROM upload
CROSS JOIN LATERAL (
    SELECT count(*) AS parts, coalesce(sum(p.bytes), 0) AS bytes
    FROM batchline.upload_parts AS p
    WHERE p.upload_id = upload.id
) AS so_far
WHERE so_far.parts < %(max_parts)s AND so_far.bytes + %(bytes)s <= %(max_bytes)s
RETURNING created_at

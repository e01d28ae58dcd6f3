-- ended_parts: a page of parts of uploads that have ended: of one upload, or of all.
--
-- An upload that began to be completed before it expired may still read its parts for `grace`. Locks: none.
SELECT p.id, p.object_key
FROM batchline.upload_parts AS p
JOIN batchline.uploads AS u ON u.id = p.upload_id
WHERE (%(upload)s::uuid IS NULL OR u.id = %(upload)s::uuid)
  AND (
      u.completed_at IS NOT NULL
      OR u.cancelled_at IS NOT NULL
      OR u.expires_at < now() - %(grace)s::interval
  )
LIMIT %(limit)s

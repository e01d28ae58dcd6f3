-- list_webhooks: a tenant's, newest first, those after one of them.
SELECT *
FROM batchline.webhooks
WHERE tenant = %(tenant)s
  AND (
      %(after)s::uuid IS NULL
      OR (created_at, id) < (SELECT created_at, id FROM batchline.webhooks WHERE id = %(after)s AND tenant = %(tenant)s)
  )
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s

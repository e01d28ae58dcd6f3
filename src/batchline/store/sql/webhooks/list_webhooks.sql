-- list_webhooks: the webhooks of a tenant, newest first; `after` is the last webhook of the previous page.
SELECT *
FROM batchline.webhooks
WHERE tenant = %(tenant)s
  AND (
      %(after)s::uuid IS NULL
      OR (created_at, id) < (SELECT created_at, id FROM batchline.webhooks WHERE id = %(after)s AND tenant = %(tenant)s)
  )
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s

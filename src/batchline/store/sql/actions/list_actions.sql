-- list_actions: the actions of a tenant, or of one user of it, newest first, after one of them. No locks.
SELECT *
FROM batchline.bulk_actions
WHERE tenant = %(tenant)s
  AND id < coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
  AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
ORDER BY id DESC
LIMIT %(limit)s

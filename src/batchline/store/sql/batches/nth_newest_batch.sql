-- nth_newest_batch: the batch of a tenant that has `newer` newer ones, among the governed ones or among the others. For
-- people, who count few. No locks.
SELECT id
FROM batchline.batches
WHERE tenant = %(tenant)s AND (submitted_by IS NOT NULL) = %(governed)s::boolean
ORDER BY created_at DESC, id DESC
OFFSET %(newer)s
LIMIT 1

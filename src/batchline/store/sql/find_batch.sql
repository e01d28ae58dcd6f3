-- find_batch: the newest batch that an earlier run of the same command made.
SELECT *
FROM batches
WHERE tenant = %(tenant)s AND resume_key = %(resume_key)s
ORDER BY created_at DESC, id DESC
LIMIT 1

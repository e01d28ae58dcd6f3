-- match_batches: the ids between `lowest` and `highest`, both included: those that begin alike; of one tenant, or of all if `tenant` is NULL.
-- No locks; one range of the primary key.
SELECT id
FROM batchline.batches
WHERE id BETWEEN %(lowest)s AND %(highest)s
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
ORDER BY id
LIMIT %(limit)s

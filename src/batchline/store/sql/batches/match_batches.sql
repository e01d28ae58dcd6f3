-- match_batches: the ids between `lowest` and `highest`, both included: those that begin alike. No locks; one range of the
-- primary key.
SELECT id
FROM batchline.batches
WHERE id BETWEEN %(lowest)s AND %(highest)s
ORDER BY id
LIMIT %(limit)s

-- take_keys: take keys of items that may be submitted once. Returns those that were free, each once.
--
-- A key that another transaction has just taken is waited for: it is free if that one is rolled back. Several calls in one transaction
-- could wait for those of another one, so lock_keys comes first. Locks: the new rows.
INSERT INTO batchline.item_keys (tenant, operation, key, file_no)
SELECT DISTINCT %(tenant)s, %(operation)s, wanted.key, %(file_no)s::bigint
FROM unnest(%(keys)b::text[]) AS wanted (key)
ORDER BY wanted.key
ON CONFLICT DO NOTHING
RETURNING key

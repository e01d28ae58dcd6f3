-- record_idempotency_key: record an idempotency key in the transaction that creates its object. Returns no row if the
-- key was used before; find_idempotency_key, a separate statement, then finds it.
--
-- Locks: the key's index entry. A concurrent insert of the same key waits for it: if the first transaction commits, the
-- second inserts nothing; if it fails, the second inserts the key.
INSERT INTO batchline.idempotency (tenant, scope, key, fingerprint, object_id)
VALUES (%(tenant)s, %(scope)s, %(key)s, %(fingerprint)s, %(object)s)
ON CONFLICT (tenant, scope, key) DO NOTHING
RETURNING object_id

-- add_first_key: as add_key, but only where there has never been a key. Returns no row where there has.
-- Runs after lock_keys, in its transaction.
INSERT INTO batchline.api_keys (id, name, tenant, role, hash, hint)
SELECT %(id)s, %(name)s, %(tenant)s, %(role)s, %(hash)s, %(hint)s
WHERE NOT EXISTS (SELECT FROM batchline.api_keys)
RETURNING id, name, tenant, role, hint, created_at, revoked_at

-- add_first_key: like add_key, but only if there has never been a key. Otherwise returns no row. Runs after lock_keys,
-- in its transaction.
INSERT INTO batchline.api_keys (id, name, tenant, role, hash, hint)
SELECT %(id)s, %(name)s, %(tenant)s, %(role)s, %(hash)s, %(hint)s
WHERE NOT EXISTS (SELECT FROM batchline.api_keys)
RETURNING id, name, tenant, role, hint, created_at, revoked_at

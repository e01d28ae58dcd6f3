-- add_key: a key for a tenant. `hash` is all that is kept of the secret. Locks: none but its own row.
INSERT INTO batchline.api_keys (id, name, tenant, role, hash, hint)
VALUES (%(id)s, %(name)s, %(tenant)s, %(role)s, %(hash)s, %(hint)s)
RETURNING id, name, tenant, role, hint, created_at, revoked_at

-- add_key: add an API key to a tenant. Of the secret only `hash` is stored. Locks: only the new row.
INSERT INTO batchline.api_keys (id, name, tenant, role, hash, hint)
VALUES (%(id)s, %(name)s, %(tenant)s, %(role)s, %(hash)s, %(hint)s)
RETURNING id, name, tenant, role, hint, created_at, revoked_at

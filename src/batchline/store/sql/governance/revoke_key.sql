-- revoke_key: revoke a key, effective from the commit. Returns no row if the key does not exist or is already revoked.
-- Locks: the key's row.
UPDATE batchline.api_keys
SET revoked_at = now()
WHERE id = %(id)s AND revoked_at IS NULL
RETURNING id, name, tenant, role, hint, created_at, revoked_at

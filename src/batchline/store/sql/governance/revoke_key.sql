-- revoke_key: from its commit on the key opens nothing. Returns no row where there is none that could be
-- revoked. Locks: the key's row.
UPDATE batchline.api_keys
SET revoked_at = now()
WHERE id = %(id)s AND revoked_at IS NULL
RETURNING id, name, tenant, role, hint, created_at, revoked_at

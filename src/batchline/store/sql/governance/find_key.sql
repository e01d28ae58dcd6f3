-- find_key: the key with this hash, unless it is revoked. One read by a unique index.
SELECT id, name, tenant, role, hint, created_at, revoked_at
FROM batchline.api_keys
WHERE hash = %(hash)s AND revoked_at IS NULL

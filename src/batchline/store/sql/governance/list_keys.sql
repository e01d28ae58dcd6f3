-- list_keys: the API keys of one tenant or of all tenants, oldest first.
SELECT id, name, tenant, role, hint, created_at, revoked_at
FROM batchline.api_keys
WHERE %(tenant)s::text IS NULL OR tenant = %(tenant)s::text
ORDER BY created_at, id

-- list_tenant_keys: a page of the API keys of a tenant, newest first, revoked ones included. `after` is the last key of the
-- previous page, or NULL. Ids grow with time. Cost: one range of api_keys_of_tenant. Locks: none.
SELECT id, name, tenant, role, hint, created_at, revoked_at
FROM batchline.api_keys
WHERE tenant = %(tenant)s AND id < coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT %(limit)s

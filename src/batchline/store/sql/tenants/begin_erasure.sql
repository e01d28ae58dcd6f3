-- begin_erasure: refuse new data of a tenant from now on, revoke its keys, and make the maintenance task due that deletes its
-- data. Returns no row if the tenant is not known or was erased already; repeating it changes nothing.
--
-- It does not wait for transactions that are adding data: the last step of the erasure does (lock_tenant). Locks: the
-- tenant's row, then its keys.
WITH
tenant AS (
    UPDATE batchline.tenants AS t
    SET erasing_at = coalesce(t.erasing_at, now()), erasing_by = coalesce(t.erasing_by, %(actor)s)
    FROM (SELECT name, erasing_at FROM batchline.tenants WHERE name = %(tenant)s) AS before
    WHERE t.name = before.name AND t.erased_at IS NULL
    RETURNING t.name, before.erasing_at IS NULL AS begun
),
key AS (
    UPDATE batchline.api_keys AS k
    SET revoked_at = now()
    FROM tenant
    WHERE k.tenant = tenant.name AND k.revoked_at IS NULL
),
due AS (
    UPDATE batchline.maintenance_tasks AS m
    SET due_at = now()
    FROM tenant
    WHERE m.name = 'erasure'
)
SELECT begun FROM tenant

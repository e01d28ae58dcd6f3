-- get_tenant: a tenant, its quota, and the bytes that it stores. Two reads by key. Locks: none.
SELECT t.name, t.max_bytes, coalesce(u.stored, 0) AS stored, t.created_at, t.erasing_at, t.erasing_by, t.erased_at
FROM batchline.tenants AS t
LEFT JOIN LATERAL (
    SELECT stored FROM batchline.tenant_usage WHERE tenant = t.name ORDER BY day DESC, seq DESC LIMIT 1
) AS u ON true
WHERE t.name = %(tenant)s

-- list_tenants: a page of tenants by name, as get_tenant. `after` is the last name of the previous page. Erased ones are
-- listed, too. Locks: none.
SELECT t.name, t.max_bytes, coalesce(u.stored, 0) AS stored, t.created_at, t.erasing_at, t.erasing_by, t.erased_at
FROM batchline.tenants AS t
LEFT JOIN LATERAL (
    SELECT stored FROM batchline.tenant_usage WHERE tenant = t.name ORDER BY day DESC, seq DESC LIMIT 1
) AS u ON true
WHERE t.name > %(after)s
ORDER BY t.name
LIMIT %(limit)s

-- tenant_remains: the tables that have rows of a tenant, except for its usage, which goes last. Locks: none.
SELECT DISTINCT relation FROM batchline.tenant_data WHERE tenant = %(tenant)s AND relation <> 'tenant_usage' ORDER BY relation

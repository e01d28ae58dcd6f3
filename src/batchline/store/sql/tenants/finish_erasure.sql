-- finish_erasure: the end of an erasure: delete what the tenant has used, keep its name as erased, and record it in the audit
-- log. Runs under lock_tenant, when nothing else of the tenant is left.
--
-- The name of an erased tenant is kept so that a request from before the erasure cannot bring data back. `kept`: the
-- tenant of commands, which always exists. Locks: none that lock_tenant has not taken.
WITH
used AS (
    DELETE FROM batchline.tenant_usage WHERE tenant = %(tenant)s
),
tenant AS (
    UPDATE batchline.tenants AS t
    SET erasing_at = NULL,
        erasing_by = NULL,
        max_bytes = NULL,
        erased_at = CASE WHEN %(kept)s::boolean THEN NULL ELSE now() END
    FROM (SELECT name, erasing_at, erasing_by FROM batchline.tenants WHERE name = %(tenant)s) AS before
    WHERE t.name = before.name
    RETURNING before.name, before.erasing_at, before.erasing_by
)
INSERT INTO batchline.audit_log (tenant, actor, action, subject, detail)
SELECT name, erasing_by, 'tenant.erased', name, jsonb_build_object('began_at', erasing_at)
FROM tenant

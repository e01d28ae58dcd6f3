-- count_stored: a trigger after files or uploads were inserted, changed or deleted: count the change of their bytes for
-- their tenants (count_usage). A trigger, because many statements delete files, and none may forget to give bytes back.
--
-- Locks: the rows of the tenants in the order of their names.
CREATE FUNCTION batchline.count_stored_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    change record;
    enforced boolean := true;
BEGIN
    IF TG_OP = 'INSERT' AND TG_TABLE_NAME = 'files' THEN
        -- What the upload has reserved, the file uses.
        UPDATE batchline.uploads AS u SET charged = 0 FROM fresh AS f WHERE u.file_id = f.id AND u.charged > 0;
        FOR change IN
            SELECT
                f.tenant,
                sum(f.charged)::bigint AS stored,
                bool_and(f.purpose NOT IN ('batch_output', 'operation_output')) AS enforced
            FROM fresh AS f
            GROUP BY f.tenant
            ORDER BY f.tenant
        LOOP
            -- A finalizer may write its files while the tenant is being erased. They go with their batch.
            IF change.enforced THEN
                PERFORM batchline.require_tenant_v1(change.tenant, false);
            END IF;
            PERFORM batchline.count_usage_v1(change.tenant, change.stored, change.stored, change.enforced);
        END LOOP;
    ELSIF TG_OP = 'INSERT' THEN
        FOR change IN
            SELECT f.tenant, sum(f.charged)::bigint AS stored FROM fresh AS f GROUP BY f.tenant ORDER BY f.tenant
        LOOP
            PERFORM batchline.require_tenant_v1(change.tenant, false);
            PERFORM batchline.count_usage_v1(change.tenant, change.stored, 0, true);
        END LOOP;
    ELSIF TG_OP = 'DELETE' THEN
        FOR change IN
            SELECT g.tenant, sum(g.charged)::bigint AS stored
            FROM gone AS g
            GROUP BY g.tenant
            HAVING sum(g.charged) <> 0
            ORDER BY g.tenant
        LOOP
            PERFORM batchline.count_usage_v1(change.tenant, -change.stored);
        END LOOP;
    ELSE
        -- A file grows when a held operation gets more items. That of a Python operation grows when its batch ends, with lines
        -- that are stored already: the batch must be able to end, so they are not refused, as outputs are not.
        IF TG_TABLE_NAME = 'files' THEN
            enforced := NOT EXISTS (
                SELECT
                FROM fresh AS f
                JOIN batchline.file_lanes AS p ON p.file_no = f.no
                WHERE starts_with(p.url, 'python:')
            );
        END IF;
        FOR change IN
            SELECT c.tenant, sum(c.charged)::bigint AS stored
            FROM (
                SELECT f.tenant, f.charged FROM fresh AS f
                UNION ALL
                SELECT g.tenant, -g.charged FROM gone AS g
            ) AS c
            GROUP BY c.tenant
            HAVING sum(c.charged) <> 0
            ORDER BY c.tenant
        LOOP
            PERFORM batchline.count_usage_v1(change.tenant, change.stored, greatest(change.stored, 0), enforced);
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

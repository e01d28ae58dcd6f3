-- tenant_open: a trigger after INSERT on tables with a tenant: check each tenant of the new rows (require_tenant).
--
-- The first argument is what else the new rows mean: `key` opens an erased tenant again; `batch` needs a tenant that does
-- not store more than its quota. Rows without a tenant's name are for all tenants together.
--
-- The quota is read without a lock: outputs are written when a batch ends, so no lock could make this exact.
CREATE FUNCTION batchline.tenant_open_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    owner text;
BEGIN
    FOR owner IN SELECT DISTINCT f.tenant FROM fresh AS f WHERE f.tenant <> '' ORDER BY f.tenant LOOP
        PERFORM batchline.require_tenant_v1(owner, TG_ARGV[0] = 'key');
        IF TG_ARGV[0] = 'batch' THEN
            PERFORM batchline.require_room_v1(owner);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- require_tenant: check that a tenant may get new data, and keep it from being erased until this transaction ends.
--
-- A tenant that is being erased, or was erased, gets nothing more: a request that began before must not bring data back.
-- `reopen`: a new key opens an erased tenant again. A tenant without a row gets one.
--
-- Locks: the tenant's row FOR KEY SHARE. Transactions of one tenant do not wait for each other. The end of an erasure waits
-- for all of them (lock_tenant, FOR UPDATE), and later ones see that the tenant is erased.
CREATE FUNCTION batchline.require_tenant_v1(tenant text, reopen boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    found_tenant record;
BEGIN
    LOOP
        SELECT t.erasing_at, t.erased_at INTO found_tenant
        FROM batchline.tenants AS t
        WHERE t.name = tenant
        FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO batchline.tenants (name) VALUES (tenant) ON CONFLICT DO NOTHING;
    END LOOP;
    IF found_tenant.erasing_at IS NOT NULL THEN
        RAISE EXCEPTION USING
            MESSAGE = 'tenant "' || tenant || '" is being erased, so it gets no new data', ERRCODE = 'BLT01';
    ELSIF found_tenant.erased_at IS NOT NULL AND reopen THEN
        UPDATE batchline.tenants AS t SET erased_at = NULL, created_at = now() WHERE t.name = tenant;
    ELSIF found_tenant.erased_at IS NOT NULL THEN
        RAISE EXCEPTION USING
            MESSAGE = 'tenant "' || tenant || '" was erased, so it gets no new data', ERRCODE = 'BLT01';
    END IF;
END
$$;

-- require_room: refuse new work of a tenant that stores more than its quota. Only outputs can get it there: they are
-- always stored. Locks: none.
CREATE FUNCTION batchline.require_room_v1(tenant text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    quota bigint;
    stored bigint;
BEGIN
    SELECT t.max_bytes INTO quota FROM batchline.tenants AS t WHERE t.name = tenant;
    IF quota IS NULL THEN
        RETURN;
    END IF;
    SELECT u.stored INTO stored
    FROM batchline.tenant_usage AS u
    WHERE u.tenant = require_room_v1.tenant
    ORDER BY u.day DESC, u.seq DESC
    LIMIT 1;
    IF stored > quota THEN
        RAISE EXCEPTION USING
            MESSAGE = 'tenant "' || tenant || '" stores ' || stored || ' bytes, more than its quota of ' || quota,
            ERRCODE = 'BLQ01';
    END IF;
END
$$;

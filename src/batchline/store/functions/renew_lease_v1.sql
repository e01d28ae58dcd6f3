-- renew_lease: make sure that at least two thirds of a worker's lease are left.
--
-- A claim calls this before it takes anything. It writes only when a third of the lease has passed, because every version
-- of the row is read again by all claims for as long as a snapshot elsewhere keeps it.
--
-- Written as an insert, because the sweep may have removed the row of a worker that was thought dead.
-- Locks: the worker's row, before any lane or span. A key share lock is what the spans' foreign key takes later anyway; from
-- now on the sweep cannot remove the row before the spans are inserted.
CREATE FUNCTION batchline.renew_lease_v1(worker uuid, worker_name text, lease interval) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM batchline.workers WHERE id = worker AND lease_until >= now() + lease * 2 / 3 FOR KEY SHARE;
    IF NOT FOUND THEN
        INSERT INTO batchline.workers (id, name, lease_until)
        VALUES (worker, worker_name, now() + lease)
        ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until;
    END IF;
END
$$;

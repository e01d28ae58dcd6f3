-- renew: the heartbeat of a worker that holds spans or finalizes. Written as an insert, because the sweep
-- may have removed the row of a worker that was thought dead.
INSERT INTO batchline.workers (id, name, lease_until)
VALUES (%(worker)s, %(name)s, now() + %(lease)s)
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until

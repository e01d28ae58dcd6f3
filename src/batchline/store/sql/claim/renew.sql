-- renew: the heartbeat of a worker that holds spans or finalizes, and what it reports: `loads`, one object per routing key
-- and model (see demand), and its version. Written as inserts, because the sweep may have removed the row of a worker that was thought dead.
--
-- Locks: the worker's row, then that of its report; a worker that leaves locks them in the same order.
WITH renewed AS (
    INSERT INTO batchline.workers (id, name, lease_until)
    VALUES (%(worker)s, %(name)s, now() + %(lease)s)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
    RETURNING id
)
INSERT INTO batchline.worker_reports (worker_id, loads, version, reported_at)
SELECT id, %(loads)s::jsonb, %(version)s, now() FROM renewed
ON CONFLICT (worker_id) DO UPDATE
SET loads = excluded.loads, version = excluded.version, reported_at = excluded.reported_at

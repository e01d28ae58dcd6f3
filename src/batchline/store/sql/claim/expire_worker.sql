-- expire_worker: the process is known to be dead, so nobody needs to wait for the end of its lease. A finite time,
-- because PostgreSQL before 17 refuses to subtract infinite ones.
UPDATE batchline.workers SET lease_until = least(lease_until, now() - interval '1 second') WHERE id = %(worker)s

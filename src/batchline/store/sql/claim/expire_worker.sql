-- expire_worker: expire the lease of a dead process at once. A finite time, because PostgreSQL before 17 refuses to subtract infinite ones.
UPDATE batchline.workers SET lease_until = least(lease_until, now() - interval '1 second') WHERE id = %(worker)s

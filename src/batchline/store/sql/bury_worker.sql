-- bury_worker: the process is known to be dead, so its lease need not be waited for.
UPDATE workers SET lease_until = '-infinity' WHERE id = %(worker)s

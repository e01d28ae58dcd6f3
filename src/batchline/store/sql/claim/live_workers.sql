-- live_workers: workers with a valid lease.
SELECT id, name FROM batchline.workers WHERE lease_until >= now()

-- living_workers: workers whose lease is not over.
SELECT id, name FROM batchline.workers WHERE lease_until >= now()

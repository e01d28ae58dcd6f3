-- living_workers: workers whose lease is not over.
SELECT id, name FROM workers WHERE lease_until >= now()

-- forget_windows: minutes that are over. Done by whoever opens a new one. Locks: those rows, skipping locked ones.
DELETE FROM api_windows
WHERE starts_at IN (
    SELECT starts_at FROM api_windows WHERE starts_at < now() - interval '10 minutes' FOR UPDATE SKIP LOCKED
)

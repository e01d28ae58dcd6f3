-- count_request: one more request in this minute. Returns how many there are now, and how long the minute still is.
--
-- Locks: the minute's row, for this statement alone.
INSERT INTO api_windows AS w (starts_at, requests)
VALUES (date_trunc('minute', now()), 1)
ON CONFLICT (starts_at) DO UPDATE SET requests = w.requests + 1
RETURNING requests, extract(epoch FROM starts_at + interval '1 minute' - now())::float8

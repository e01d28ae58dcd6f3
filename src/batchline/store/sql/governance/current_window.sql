-- current_window: reads and writes of all users in this minute so far. Locks: none.
SELECT
    coalesce(sum(requests) FILTER (WHERE kind = 'read'), 0)::integer AS reads,
    coalesce(sum(requests) FILTER (WHERE kind = 'write'), 0)::integer AS writes
FROM batchline.api_windows
WHERE starts_at = date_trunc('minute', now()) AND tenant = '' AND user_id = ''

-- current_window: requests in this minute so far.
SELECT coalesce((SELECT requests FROM api_windows WHERE starts_at = date_trunc('minute', now())), 0)

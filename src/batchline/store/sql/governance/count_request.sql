-- count_request: one more request of a user in this minute. Returns the user's requests of this kind, those of all users
-- (NULL: not counted there), and the seconds until the next minute.
--
-- Beyond `share` a request counts for its user alone, and a decision always does: so no user's flood uses up what the
-- others have, and others' load never refuses a decision.
--
-- Locks, for this statement alone: the user's row, then the row of all (tenant and user empty). Everybody takes them in
-- this order, so nobody waits in a circle; each adds to what the one before has committed, so the counts are exact.
WITH mine AS (
    INSERT INTO batchline.api_windows AS w (starts_at, kind, tenant, user_id, requests)
    VALUES (date_trunc('minute', now()), %(kind)s, %(tenant)s, %(user)s, 1)
    ON CONFLICT (starts_at, kind, tenant, user_id) DO UPDATE SET requests = w.requests + 1
    RETURNING w.starts_at, w.kind, w.requests
),
everybody AS (
    INSERT INTO batchline.api_windows AS w (starts_at, kind, tenant, user_id, requests)
    SELECT mine.starts_at, mine.kind, '', '', 1
    FROM mine
    WHERE mine.requests <= %(share)s AND mine.kind <> 'decision'
    ON CONFLICT (starts_at, kind, tenant, user_id) DO UPDATE SET requests = w.requests + 1
    RETURNING w.requests
)
SELECT
    mine.requests,
    everybody.requests,
    extract(epoch FROM mine.starts_at + interval '1 minute' - now())::float8
FROM mine
LEFT JOIN everybody ON true

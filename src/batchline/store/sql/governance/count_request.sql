-- count_request: count one more request of a user in this minute. Returns the user's requests of this kind, those of
-- all users (NULL if this request does not count there), and the seconds until the next minute.
--
-- A request beyond `share`, and every decision, counts only for its user. So a flood from one user does not use up the
-- limit of the others, and load from other users never blocks a decision.
--
-- Locks, for this statement only: the user's row, then the row of all users (tenant and user empty). All statements
-- take them in this order, so there is no deadlock. Each adds to what the previous one committed, so the counts are
-- exact.
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

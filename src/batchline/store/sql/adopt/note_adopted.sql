-- note_adopted: add a step of `prepare` to the totals that estimates are made from, and remember where the reading of
-- requests stands. Runs in the transaction of that step. Locks: the row of the adoption, which the caller has locked.
UPDATE batchline.adoption
SET lines = lines + %(lines)s::bigint,
    lines_seconds = lines_seconds + CASE
        WHEN %(lines)s::bigint > 0 THEN extract(epoch FROM clock_timestamp() - now()) ELSE 0
    END,
    results = results + %(results)s::bigint,
    results_seconds = results_seconds + CASE
        WHEN %(results)s::bigint > 0 THEN extract(epoch FROM clock_timestamp() - now()) ELSE 0
    END,
    next_page = coalesce(%(next_page)s::bigint, next_page)

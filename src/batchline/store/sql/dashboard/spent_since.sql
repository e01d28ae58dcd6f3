-- spent_since: what a tenant's batches have cost since a moment, in nano-dollars, and their tokens, from what settles have noted.
--
-- No more than `limit` notes are read, the newest. Cost: one range of an index. Locks: none.
SELECT coalesce(sum(note.more_cost), 0)::bigint AS cost, coalesce(sum(note.more_tokens), 0)::bigint AS tokens, now() AS read_at
FROM (
    SELECT p.more_cost, p.more_tokens
    FROM batchline.progress AS p
    WHERE p.tenant = %(tenant)s AND p.at >= date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    ORDER BY p.at DESC
    LIMIT %(limit)s
) AS note

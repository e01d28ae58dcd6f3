-- eager_claim: up to `limit` pending requests, batch by batch, line by line, with their bodies.
-- Ids grow with time, so the oldest batch comes first and its lines in their order.
--
-- Locks: requests, SKIP LOCKED. Cancelling in this design rewrites the pending rows, so the batch is not read.
WITH
claimable AS (
    SELECT id
    FROM requests
    WHERE state = 'pending' AND model = %(model)s AND (not_before IS NULL OR not_before <= now())
    ORDER BY batch_id, template_id
    LIMIT {limit}
    FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE requests AS r
    SET state = 'claimed', daemon_id = %(daemon)s, claimed_at = now()
    FROM claimable AS c
    WHERE r.id = c.id
    RETURNING r.id, r.template_id, r.custom_id
)
SELECT c.id, c.custom_id, t.body
FROM claimed AS c
JOIN request_templates AS t ON t.id = c.template_id

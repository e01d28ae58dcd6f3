-- release_strays: free what a worker holds without knowing it: a claim whose answer was lost on the way.
--
-- Locks: the spans concerned, in id order.
WITH
span AS (
    SELECT id
    FROM spans
    WHERE worker_id = %(worker)s AND NOT (id = ANY (%(known)s::bigint[]))
    ORDER BY id
    FOR UPDATE
)
UPDATE spans AS s
SET worker_id = NULL, available_at = now()
FROM span
WHERE s.id = span.id
RETURNING s.id

-- write_back_results: a template: finish old requests with the results of adopted batches. `assignments` are those of the
-- columns that the old table has. Locks: these requests.
UPDATE {requests} AS request
SET {assignments}
FROM unnest(
    %(ids)s::uuid[], %(states)s::text[], %(retry_attempts)s::integer[], %(statuses)s::smallint[], %(bodies)s::text[],
    %(errors)s::text[], %(finished)s::timestamptz[]
) AS given (id, state, retry_attempt, response_status, response_body, error, at)
CROSS JOIN LATERAL (
    SELECT given.*, NULL::timestamptz AS not_before
) AS written
WHERE request.id = written.id AND request.state IN ('pending', 'claimed', 'processing')

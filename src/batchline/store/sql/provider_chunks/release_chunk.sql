-- release_chunk: free the span of a chunk that `worker` holds. A relay takes the chunk again after `delay` seconds. `held`: the provider
-- may have accepted it without an answer, and the operator has to decide.
--
-- The span is not available before the year 9998: claims are for items, and a chunk is due by its own row. Locks: the span, then the chunk.
WITH
span AS (
    SELECT s.id
    FROM batchline.spans AS s
    WHERE s.worker_id = %(worker)s AND s.task_id = 'chunk:' || %(chunk)s::uuid
    FOR UPDATE
),
freed AS (
    UPDATE batchline.spans AS s
    SET worker_id = NULL,
        available_at = '9998-01-01 00:00:00+00',
        submission = CASE WHEN %(held)s::boolean THEN 'unknown' END
    FROM span
    WHERE s.id = span.id
    RETURNING s.batch_id
),
put_off AS (
    UPDATE batchline.provider_chunks AS c
    SET due_at = now() + make_interval(secs => %(delay)s::float8), error = coalesce(%(error)s::text, c.error), updated_at = now()
    FROM span
    WHERE c.id = %(chunk)s::uuid AND c.span_id = span.id
)
SELECT DISTINCT batch_id FROM freed

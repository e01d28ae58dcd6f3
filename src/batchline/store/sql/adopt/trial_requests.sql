-- trial_requests: a few finished requests, as finished_requests returns them, of a batch and a lane that do not exist: to
-- measure how fast they are copied. Locks: none.
SELECT
    r.batch_id,
    -1::bigint AS lane_id,
    row_number() OVER ()::integer AS line_no,
    row_number() OVER ()::integer AS ordinal,
    r.id::text AS custom_id,
    r.id::text AS request_id,
    r.state,
    r.retry_attempt,
    r.response_status,
    r.response_body,
    r.error,
    now() AS finished_at
FROM (
    SELECT * FROM batchline.source_requests WHERE state IN ('completed', 'failed') AND batch_id IS NOT NULL LIMIT %(rows)s
) AS r

-- list_causes: why items of a batch failed, and how many; and the number of all that failed, in the same snapshot. One row
-- without a cause if none is listed. No locks.
--
-- Items that wait for another try are looked at one by one, but no more than `sample` of them: then the caller estimates the
-- rest. An example that was put back and did not fail again is not shown.
--
-- Cost: a batch lists at most 100 causes; a few index probes for each, and two for each item of the sample. Free spans are
-- read from now() on, so that dead index entries of earlier ones are passed over.
WITH
waiting AS (
    SELECT a.cause
    FROM (
        SELECT s.lane_id, s.attempt, ordinal
        FROM batchline.lanes AS n
        CROSS JOIN LATERAL (
            SELECT spans.lane_id, spans.attempt, spans.outstanding
            FROM batchline.spans
            WHERE spans.worker_id IS NULL
              AND spans.lane_id = n.id
              AND spans.available_at > now()
              -- Not those that are held back for a later step.
              AND spans.available_at < '9999-12-31 00:00:00+00'
              AND spans.attempt > 1
              AND spans.task_id IS NULL
        ) AS s
        CROSS JOIN LATERAL unnest(s.outstanding) AS piece
        CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS ordinal
        WHERE n.batch_id = %(batch)s
        LIMIT %(sample)s
    ) AS item
    CROSS JOIN LATERAL (
        SELECT r.cause
        FROM batchline.retry_attempts AS r
        WHERE r.lane_id = item.lane_id AND r.ordinal = item.ordinal AND r.attempt = item.attempt - 1
        ORDER BY r.id DESC
        LIMIT 1
    ) AS a
)
SELECT
    b.failed AS all_failed,
    (SELECT count(*) FROM waiting)::integer AS sampled,
    f.key,
    f.code,
    f.message,
    f.failed AS count,
    (SELECT count(*) FROM waiting WHERE waiting.cause = f.key)::integer AS retrying,
    example.custom_id AS example
FROM batchline.current_batches AS b
LEFT JOIN batchline.current_failure_causes AS f ON f.batch_id = b.id
LEFT JOIN LATERAL (
    SELECT l.custom_id
    FROM batchline.lanes AS n
    JOIN batchline.lines AS l
        ON l.file_no = n.file_no AND l.lane_no = n.lane_no AND l.ordinal = f.example_ordinal
    LEFT JOIN batchline.results AS r ON r.lane_id = n.id AND r.line_no = l.line_no
    WHERE n.id = f.example_lane AND (f.failed = 0 OR r.cause = f.key)
    LIMIT 1
) AS example ON true
WHERE b.id = %(batch)s

-- measure_adopted_lanes: for each lane to be created, where its cursor will be, and what its results add up to. Runs at the
-- cutover, when every finished request has its result and nobody writes.
--
-- The cursor passes every item that has a result, was in flight, or has failed before. A batch that was cancelled runs no
-- more, so only its results count. Locks: the rows of adopted_lanes.
WITH
done AS (
    SELECT
        r.lane_id,
        max(r.ordinal) AS last,
        count(*) FILTER (WHERE r.outcome = 'completed') AS completed,
        count(*) FILTER (WHERE r.outcome = 'failed') AS failed,
        sum(r.input_tokens) AS input_tokens,
        sum(r.output_tokens) AS output_tokens
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id
    JOIN batchline.results AS r ON r.lane_id = n.lane_id
    WHERE b.reason IS NULL
    GROUP BY r.lane_id
),
touched AS (
    SELECT n.lane_id, max(a.ordinal) AS last
    FROM batchline.adopted_batches AS b
    JOIN batchline.source_batches AS old ON old.id = b.batch_id
    JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
    WHERE b.reason IS NULL
      AND coalesce(old.cancelling_at, old.cancelled_at) IS NULL
      AND (
          r.state IN ('claimed', 'processing')
          OR (r.state = 'pending' AND (r.retry_attempt > 0 OR r.not_before > now()))
      )
    GROUP BY n.lane_id
)
UPDATE batchline.adopted_lanes AS n
SET next = coalesce(greatest(done.last, touched.last) + 1, 0),
    completed = coalesce(done.completed, 0),
    failed = coalesce(done.failed, 0),
    input_tokens = coalesce(done.input_tokens, 0),
    output_tokens = coalesce(done.output_tokens, 0)
FROM batchline.adopted_lanes AS lane
LEFT JOIN done ON done.lane_id = lane.lane_id
LEFT JOIN touched ON touched.lane_id = lane.lane_id
WHERE n.lane_id = lane.lane_id

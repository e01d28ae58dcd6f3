-- add_missing_requests: a template: a pending request for each line of an adopted batch that has none any more, because
-- somebody deleted the pending ones. Locks: only its own rows.
INSERT INTO {requests} ({columns})
SELECT {values}
FROM (
    SELECT
        gen_random_uuid() AS id,
        b.batch_id,
        a.template_id,
        'pending' AS state,
        l.custom_id,
        0 AS retry_attempt,
        p.model
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_lines AS a ON a.file_no = b.file_no
    JOIN batchline.adopted_file_lanes AS p ON p.file_no = a.file_no AND p.lane_no = a.lane_no
    JOIN batchline.lines AS l ON l.file_no = a.file_no AND l.lane_no = a.lane_no AND l.ordinal = a.ordinal
    WHERE b.reason IS NULL
      AND NOT EXISTS (
          SELECT FROM batchline.source_requests AS r WHERE r.batch_id = b.batch_id AND r.template_id = a.template_id
      )
) AS missing

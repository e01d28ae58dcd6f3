-- source_size: how much there is to adopt, and how much of it is copied: numbers for plans and estimates. Locks: none.
SELECT
    (SELECT count(*) FROM batchline.source_files AS f WHERE coalesce(f.purpose, 'batch') = 'batch')::bigint AS files,
    (SELECT count(*) FROM batchline.source_templates AS t WHERE t.file_id IS NOT NULL)::bigint AS templates,
    (SELECT count(*) FROM batchline.source_batches AS b WHERE b.deleted_at IS NULL)::bigint AS batches,
    (SELECT coalesce(sum(f.copied), 0) FROM batchline.adopted_files AS f)::bigint AS copied_lines,
    (
        SELECT count(*) FROM batchline.results AS r JOIN batchline.adopted_lanes AS n ON n.lane_id = r.lane_id
    )::bigint AS copied_results,
    r.*
FROM (
    SELECT
        count(*) FILTER (WHERE state = 'pending') AS pending,
        count(*) FILTER (WHERE state IN ('claimed', 'processing')) AS in_flight,
        count(*) FILTER (WHERE state = 'completed') AS completed,
        count(*) FILTER (WHERE state = 'failed') AS failed,
        count(*) FILTER (WHERE state = 'canceled') AS canceled
    FROM batchline.source_requests
    WHERE batch_id IS NOT NULL
) AS r

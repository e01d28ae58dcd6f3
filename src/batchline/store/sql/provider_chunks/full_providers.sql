-- full_providers: routing keys of a batch with lines that wait, because open chunks of all batches fill the limits of their upstream: as
-- many chunks or tokens as it may have. The last few tokens are too few for a line. The limits are those of the newest open chunk.
-- Cost: the lanes of the batch, and the open chunks of their keys. No locks.
SELECT n.key, o.chunks, o.max_chunks, o.tokens, o.max_tokens
FROM (
    SELECT DISTINCT lanes.key
    FROM batchline.lanes
    WHERE lanes.batch_id = %(batch)s
      AND lanes.open
      AND (
          NOT lanes.drained
          OR EXISTS (
              SELECT
              FROM batchline.spans AS s
              WHERE s.lane_id = lanes.id AND s.worker_id IS NULL AND s.task_id IS NULL AND s.available_at <= now()
          )
      )
) AS n
CROSS JOIN LATERAL (
    SELECT
        count(*)::integer AS chunks, coalesce(sum(c.tokens), 0)::bigint AS tokens,
        (array_agg(c.chunk_limit ORDER BY c.created_at DESC))[1] AS max_chunks,
        (array_agg(c.token_limit ORDER BY c.created_at DESC))[1] AS max_tokens
    FROM batchline.provider_chunks AS c
    CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s
    WHERE c.upstream = n.key AND c.state <> 'done' AND s.task_id = 'chunk:' || c.id
) AS o
WHERE o.chunks >= o.max_chunks OR o.tokens >= 0.98 * o.max_tokens
ORDER BY n.key

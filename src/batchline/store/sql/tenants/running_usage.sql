-- running_usage: what batches that have not ended have used so far and is not counted by day yet: of one tenant, or of all
-- (NULL). One read of an index of such batches, and the newest counters of each. Locks: none.
SELECT
    b.tenant,
    count(*) AS batches,
    sum(b.completed + b.failed - coalesce(c.completed + c.failed, 0)) AS lines,
    sum(b.failed - coalesce(c.failed, 0)) AS failed,
    sum(b.reused - coalesce(c.reused, 0)) AS reused,
    sum(b.input_tokens - coalesce(c.input_tokens, 0)) AS input_tokens,
    sum(b.cached_tokens - coalesce(c.cached_tokens, 0)) AS cached_tokens,
    sum(b.output_tokens - coalesce(c.output_tokens, 0)) AS output_tokens,
    sum(b.reasoning_tokens - coalesce(c.reasoning_tokens, 0)) AS reasoning_tokens,
    sum(b.cost - coalesce(c.cost, 0)) AS cost
FROM (
    -- Two indexes: of those that run, and of those whose files are being written.
    SELECT id FROM batchline.batches WHERE finalizing_at IS NULL AND ended_at IS NULL
    UNION ALL
    SELECT id FROM batchline.batches WHERE finalizing_at IS NOT NULL AND ended_at IS NULL
) AS open
CROSS JOIN LATERAL (SELECT * FROM batchline.current_batches AS n WHERE n.id = open.id LIMIT 1) AS b
LEFT JOIN LATERAL (SELECT * FROM batchline.usage_counted AS n WHERE n.batch_id = open.id LIMIT 1) AS c ON true
WHERE %(tenant)s::text IS NULL OR b.tenant = %(tenant)s::text
GROUP BY b.tenant
ORDER BY b.tenant

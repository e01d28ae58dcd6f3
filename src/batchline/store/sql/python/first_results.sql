-- first_results: how the first items of batches have ended, until `room` bytes are full; the result that reaches `room` is the
-- last one. Returns no row for a batch whose first item can still get a result.
--
-- `ending` is the code of an item that never ran. A few probes of indexes per batch. Locks: none.
SELECT id, deleted, ending, attempt, output
FROM (
    SELECT
        wanted.id,
        b.id IS NULL OR b.purging_at IS NOT NULL AS deleted,
        CASE
            WHEN b.cancelling_at IS NOT NULL THEN 'batch_cancelled'
            WHEN b.expiring_at IS NOT NULL THEN 'batch_expired'
        END AS ending,
        r.attempt,
        r.output,
        sum(coalesce(octet_length(r.output), 0)) OVER (ORDER BY wanted.nth) - coalesce(octet_length(r.output), 0) AS before
    FROM unnest(%(batches)s::uuid[]) WITH ORDINALITY AS wanted (id, nth)
    LEFT JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = wanted.id LIMIT 1) AS b ON true
    LEFT JOIN LATERAL (
        SELECT lanes.id FROM batchline.lanes WHERE lanes.batch_id = b.id ORDER BY lanes.lane_no LIMIT 1
    ) AS n ON true
    LEFT JOIN LATERAL (
        SELECT results.attempt, results.output
        FROM batchline.results
        WHERE results.lane_id = n.id AND results.line_no = 1
        LIMIT 1
    ) AS r ON true
    WHERE r.attempt IS NOT NULL OR b.id IS NULL OR b.finalizing_at IS NOT NULL OR b.ended_at IS NOT NULL
) AS found
WHERE before < %(room)s

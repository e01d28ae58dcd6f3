-- missing_results: created batches that count fewer results than they have finished requests, as counted by judge_batches.
-- Reads a row for each batch, so it costs the window of the cutover nothing. Locks: none.
SELECT b.batch_id, missing.results::integer
FROM batchline.adopted_batches AS b
JOIN batchline.batches AS made ON made.id = b.batch_id
CROSS JOIN LATERAL (
    SELECT
        greatest(b.completed - made.completed, 0)
        -- A request that was canceled alone has a failed result.
        + greatest(b.failed + CASE WHEN made.cancelling_at IS NULL THEN b.canceled ELSE 0 END - made.failed, 0) AS results
) AS missing
WHERE b.reason IS NULL AND missing.results > 0
ORDER BY b.batch_id

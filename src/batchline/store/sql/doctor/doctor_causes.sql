-- doctor_causes: check that each listed cause counts the results that have it, and that a frozen batch has no counts
-- outside of its list.
--
-- Failed results are read by their index, so this is short for batches that went well.
WITH
batch AS (
    SELECT b.id, b.finalizing_at
    FROM batchline.batches AS b
    -- A purge deletes rows in any order.
    WHERE b.purging_at IS NULL AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
),
found AS (
    SELECT n.batch_id, r.cause, count(*) AS items
    FROM batch
    JOIN batchline.lanes AS n ON n.batch_id = batch.id
    JOIN batchline.results AS r ON r.lane_id = n.id
    WHERE r.outcome = 'failed'
    GROUP BY n.batch_id, r.cause
),
miscounted AS (
    SELECT
        f.batch_id,
        format('cause %%s counts %%s failures, and has %%s', f.key, f.failed, coalesce(found.items, 0)) AS message
    FROM batchline.current_failure_causes AS f
    JOIN batch ON batch.id = f.batch_id
    LEFT JOIN found ON found.batch_id = f.batch_id AND found.cause = f.key
    WHERE f.failed <> coalesce(found.items, 0)
),
left_over AS (
    SELECT c.batch_id, format('%%s counts of causes are left over', count(*)) AS message
    FROM batchline.cause_counts AS c
    JOIN batch ON batch.id = c.batch_id
    WHERE batch.finalizing_at IS NOT NULL
    GROUP BY c.batch_id
)
SELECT 'causes' AS name, NULL::uuid AS file_id, batch_id, NULL::bigint AS lane_id, message
FROM (
    SELECT * FROM miscounted
    UNION ALL
    SELECT * FROM left_over
) AS finding
ORDER BY batch_id, message
LIMIT %(max_findings)s

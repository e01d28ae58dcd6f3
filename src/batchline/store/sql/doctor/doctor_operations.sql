-- doctor_operations: check that a governed batch and its row in operation_batches agree, that it is held exactly while
-- it waits for an approval or a release, that a rejected batch is cancelled, and that the totals equal what batches
-- have added to them.
--
-- Small tables only.
WITH
batch AS (
    SELECT
        b.id,
        b.tenant,
        b.submitted_by,
        b.held_at,
        b.cancelling_at,
        b.finalizing_at IS NULL AND b.cancelling_at IS NULL AND b.expiring_at IS NULL AS running,
        o.batch_id IS NOT NULL AS known,
        o.tenant AS said_tenant,
        o.user_id,
        o.approval,
        o.held
    FROM batchline.batches AS b
    LEFT JOIN batchline.operation_batches AS o ON o.batch_id = b.id
    WHERE (b.submitted_by IS NOT NULL OR o.batch_id IS NOT NULL)
      AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
),
finding AS (
    SELECT 'governed' AS name, id AS batch_id, 'the batch and its row in operation_batches do not agree' AS message
    FROM batch
    WHERE NOT known OR (tenant, submitted_by) IS DISTINCT FROM (said_tenant, user_id)
    UNION ALL
    SELECT
        'held',
        id,
        CASE
            WHEN held_at IS NULL THEN 'it waits for an approval or a release, but is not held: it may be running'
            ELSE 'it is held, but waits for neither an approval nor a release: it will never run'
        END
    FROM batch
    WHERE known AND running AND (held_at IS NOT NULL) <> (held OR approval = 'pending')
    UNION ALL
    SELECT 'rejected', id, 'it was rejected, but is not cancelled'
    FROM batch
    WHERE approval = 'rejected' AND cancelling_at IS NULL
    UNION ALL
    SELECT
        'totals',
        NULL,
        format('operation %%s has %%s in its totals, but its batches have added %%s', operation, added.totals, added.batches)
    FROM (
        SELECT
            coalesce(t.operation, o.operation) AS operation,
            (coalesce(t.succeeded, 0), coalesce(t.failed, 0)) AS totals,
            (coalesce(o.succeeded, 0), coalesce(o.failed, 0)) AS batches
        FROM batchline.operation_totals AS t
        FULL JOIN (
            SELECT operation, sum(counted_succeeded)::bigint AS succeeded, sum(counted_failed)::bigint AS failed
            FROM batchline.operation_batches
            WHERE counted_succeeded > 0 OR counted_failed > 0
            GROUP BY operation
        ) AS o USING (operation)
    ) AS added
    WHERE %(batch)s::uuid IS NULL AND added.totals <> added.batches
)
SELECT name, NULL::uuid AS file_id, batch_id, NULL::bigint AS lane_id, message
FROM finding
ORDER BY name, batch_id
LIMIT %(max_findings)s

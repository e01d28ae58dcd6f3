-- doctor_batches: check that a batch is frozen exactly when no item is left or it is closing; that it ends once, in the
-- way it was closing; and that it has the files that its counters require: an output file if an item was completed, an
-- error file for the rest.
--
-- A batch that failed validation (failed_at) never ran and is frozen by that alone.
WITH
batch AS (
    SELECT
        b.*,
        b.completed + b.failed + b.left_out = b.total AND NOT b.accepting AS done,
        b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing,
        num_nonnulls(b.completed_at, b.cancelled_at, b.expired_at, b.failed_at) AS ends
    FROM batchline.current_batches AS b
    WHERE %(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid
),
-- Files that an ended batch must have, and those that it has.
made AS (
    SELECT b.id AS batch_id, b.ended_at, e.kind, e.file_id, e.lines, f.id AS found, f.line_count
    FROM batch AS b
    CROSS JOIN LATERAL (
        VALUES ('output', b.output_file_id, b.completed), ('error', b.error_file_id, b.total - b.completed)
    ) AS e (kind, file_id, lines)
    LEFT JOIN batchline.files AS f ON f.id = e.file_id
    WHERE b.failed_at IS NULL
),
finding AS (
    SELECT
        'counters' AS name,
        b.id AS batch_id,
        format(
            'it has %%s rows of counters, and is%%s frozen',
            c.rows,
            CASE WHEN b.finalizing_at IS NULL THEN ' not' END
        ) AS message
    FROM batch AS b
    JOIN (SELECT batch_id, count(*) AS rows FROM batchline.counters GROUP BY batch_id) AS c ON c.batch_id = b.id
    WHERE c.rows > 1 OR b.finalizing_at IS NOT NULL
    UNION ALL
    SELECT
        'finalizing',
        id,
        'every item has an outcome, but finalizing has not begun: the batch is stuck'
    FROM batch
    WHERE done AND finalizing_at IS NULL AND failed_at IS NULL
    UNION ALL
    SELECT 'finalizing', id, format('it is frozen with %%s of %%s items finished, but was not closed', completed + failed, total)
    FROM batch
    WHERE finalizing_at IS NOT NULL AND NOT done AND NOT closing
    UNION ALL
    SELECT 'end', id, format('it has ended %%s times', ends)
    FROM batch
    WHERE ends > 1
    UNION ALL
    SELECT 'end', id, 'it has ended, but was never frozen'
    FROM batch
    WHERE ended_at IS NOT NULL AND failed_at IS NULL AND finalizing_at IS NULL
    UNION ALL
    SELECT
        'end',
        id,
        format(
            'it has ended as %%s, but it was %%s',
            CASE
                WHEN cancelled_at IS NOT NULL THEN 'cancelled'
                WHEN expired_at IS NOT NULL THEN 'expired'
                ELSE 'completed'
            END,
            CASE
                WHEN cancelling_at IS NOT NULL THEN 'being cancelled'
                WHEN expiring_at IS NOT NULL THEN 'expiring'
                ELSE 'running'
            END
        )
    FROM batch
    WHERE ends = 1
      AND failed_at IS NULL
      AND (cancelled_at IS NOT NULL, expired_at IS NOT NULL)
       <> (cancelling_at IS NOT NULL, cancelling_at IS NULL AND expiring_at IS NOT NULL)
    UNION ALL
    SELECT 'end_files', batch_id, format('it has no %%s file for %%s items', kind, lines)
    FROM made
    WHERE ended_at IS NOT NULL AND file_id IS NULL AND lines > 0
    UNION ALL
    SELECT 'end_files', batch_id, format('it has an %%s file, but no items for it', kind)
    FROM made
    WHERE ended_at IS NOT NULL AND file_id IS NOT NULL AND lines = 0
    UNION ALL
    SELECT 'end_files', batch_id, format('it has not ended, but has an %%s file already', kind)
    FROM made
    WHERE ended_at IS NULL AND file_id IS NOT NULL
    UNION ALL
    SELECT 'end_files', batch_id, format('its %%s file %%s does not exist', kind, file_id)
    FROM made
    WHERE file_id IS NOT NULL AND found IS NULL
    UNION ALL
    SELECT 'end_files', batch_id, format('its %%s file has %%s lines for %%s items', kind, line_count, lines)
    FROM made
    WHERE ended_at IS NOT NULL AND found IS NOT NULL AND lines > 0 AND line_count <> lines
)
SELECT name, NULL::uuid AS file_id, batch_id, NULL::bigint AS lane_id, message
FROM finding
ORDER BY name, batch_id, message
LIMIT %(max_findings)s

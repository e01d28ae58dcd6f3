-- drop_attempts: delete a chunk of the failed attempts of one batch that is being purged. Returns their number.
--
-- Rows are found in the order of an index, so that only a chunk is read and not the whole lane, and are deleted by
-- ctid, as in drop_file_lines. Locks: these rows, skipping those that another worker deletes.
WITH
chunk AS (
    SELECT r.row_id
    FROM batchline.batches AS b
    JOIN batchline.lanes AS n ON n.batch_id = b.id
    CROSS JOIN LATERAL (
        SELECT ctid AS row_id
        FROM batchline.retry_attempts
        WHERE lane_id = n.id
        ORDER BY ordinal, attempt
        LIMIT %(chunk)s
        FOR UPDATE SKIP LOCKED
    ) AS r
    WHERE b.id = %(batch)s AND b.purging_at IS NOT NULL
    LIMIT %(chunk)s
),
dropped AS (
    DELETE FROM batchline.retry_attempts
    WHERE ctid = ANY (ARRAY(SELECT row_id FROM chunk))
    RETURNING 1
)
SELECT count(*)::integer FROM dropped

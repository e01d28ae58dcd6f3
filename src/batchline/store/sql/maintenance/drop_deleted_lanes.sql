-- drop_deleted_lanes: delete a chunk of what is left of one lane whose row is gone: spans, results, attempts, cursors, and
-- the counters of its batch and of its causes. Of any batch, or of one. Returns the number of deleted rows; the caller repeats until there is
-- no row.
--
-- The lane's row in `deleted_lanes` goes last, by a call whose snapshot has nothing else of the lane. Results come only from
-- spans, in the transaction that shrinks the span, and no claim makes a span for a lane that is gone. So a snapshot without
-- spans has all results that there will be.
--
-- Locks: the row in deleted_lanes, skipping those that another worker has; then the lane's spans in id order, waiting for
-- settles. Rows are found in the order of an index and deleted by ctid, for the reasons given in drop_file_lines.
WITH
lane AS (
    SELECT d.lane_id, d.batch_id
    FROM batchline.deleted_lanes AS d
    WHERE %(batch)s::uuid IS NULL OR d.batch_id = %(batch)s::uuid
    ORDER BY d.lane_id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
-- As of this snapshot. Those that are locked next may be gone: a settle that has emptied one meanwhile has left results.
any_span AS (
    SELECT
    FROM lane
    CROSS JOIN LATERAL (
        SELECT FROM batchline.spans WHERE batch_id = lane.batch_id AND lane_id = lane.lane_id LIMIT 1
    ) AS s
),
span AS (
    SELECT s.id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT spans.id
        FROM batchline.spans
        WHERE spans.batch_id = lane.batch_id AND spans.lane_id = lane.lane_id
        ORDER BY spans.id
        LIMIT %(chunk)s
        FOR UPDATE
    ) AS s
),
result AS (
    SELECT r.row_id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT ctid AS row_id FROM batchline.results WHERE lane_id = lane.lane_id ORDER BY line_no LIMIT %(chunk)s
    ) AS r
),
attempt AS (
    SELECT a.row_id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT ctid AS row_id
        FROM batchline.retry_attempts
        WHERE lane_id = lane.lane_id
        ORDER BY ordinal, attempt
        LIMIT %(chunk)s
    ) AS a
),
dropped_spans AS (
    DELETE FROM batchline.spans WHERE id = ANY (ARRAY(SELECT id FROM span)) RETURNING 1
),
dropped_results AS (
    DELETE FROM batchline.results WHERE ctid = ANY (ARRAY(SELECT row_id FROM result)) RETURNING 1
),
dropped_attempts AS (
    DELETE FROM batchline.retry_attempts WHERE ctid = ANY (ARRAY(SELECT row_id FROM attempt)) RETURNING 1
),
dropped_cursors AS (
    DELETE FROM batchline.cursors WHERE lane_id = ANY (ARRAY(SELECT lane_id FROM lane)) RETURNING 1
),
dropped_counters AS (
    DELETE FROM batchline.counters WHERE batch_id = ANY (ARRAY(SELECT batch_id FROM lane)) RETURNING 1
),
dropped_cause_counts AS (
    DELETE FROM batchline.cause_counts WHERE batch_id = ANY (ARRAY(SELECT batch_id FROM lane)) RETURNING 1
),
done AS (
    DELETE FROM batchline.deleted_lanes
    WHERE lane_id = ANY (ARRAY(SELECT lane_id FROM lane))
      AND NOT EXISTS (SELECT FROM any_span)
      AND NOT EXISTS (SELECT FROM result)
      AND NOT EXISTS (SELECT FROM attempt)
)
SELECT (
    (SELECT count(*) FROM dropped_spans)
    + (SELECT count(*) FROM dropped_results)
    + (SELECT count(*) FROM dropped_attempts)
    + (SELECT count(*) FROM dropped_cursors)
    + (SELECT count(*) FROM dropped_counters)
    + (SELECT count(*) FROM dropped_cause_counts)
)::integer AS gone
FROM lane

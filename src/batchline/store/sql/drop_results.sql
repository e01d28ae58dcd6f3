-- drop_results: a chunk of the results of one batch that is being purged. Returns how many went.
--
-- In the order of the key, so that a chunk is read and not the whole lane. Locks: these rows, skipping what another one clears away.
WITH
chunk AS (
    SELECT r.lane_id, r.line_no
    FROM batches AS b
    JOIN lanes AS n ON n.batch_id = b.id
    CROSS JOIN LATERAL (
        SELECT * FROM results WHERE lane_id = n.id ORDER BY line_no LIMIT %(chunk)s FOR UPDATE SKIP LOCKED
    ) AS r
    WHERE b.id = %(batch)s AND b.purging_at IS NOT NULL
    LIMIT %(chunk)s
),
dropped AS (
    DELETE FROM results AS r
    USING chunk AS c
    WHERE r.lane_id = c.lane_id AND r.line_no = c.line_no
    RETURNING 1
)
SELECT count(*)::integer FROM dropped

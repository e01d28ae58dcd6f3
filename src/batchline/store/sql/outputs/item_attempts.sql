-- item_attempts: one item of a batch, by its custom_id, with the attempts that failed and were followed by another. No row if
-- the batch has no such line, or its results have been deleted. Locks: none.
--
-- Cost: lines have no index by custom_id, which would slow down every upload. So this reads the lines of the batch up to the
-- first match: custom_ids are unique.
SELECT
    q.custom_id,
    q.line_no,
    q.model,
    q.state,
    q.attempt,
    q.claimed_at,
    q.not_before,
    q.status_code,
    q.finished_at,
    coalesce(
        (
            SELECT jsonb_agg(
                jsonb_build_object(
                    'attempt', a.attempt,
                    'error_code', a.error_code,
                    'message', a.message,
                    'not_before', a.not_before,
                    'created_at', a.created_at
                )
                ORDER BY a.attempt, a.id
            )
            FROM batchline.retry_attempts AS a
            WHERE a.lane_id = q.lane_id AND a.ordinal = q.ordinal
        ),
        '[]'
    ) AS attempts
FROM (
    SELECT *
    FROM batchline.requests
    WHERE batch_id = %(batch)s AND custom_id = %(custom_id)s
    LIMIT 1
) AS q

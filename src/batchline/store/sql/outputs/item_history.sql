-- item_history: like item_attempts, for the item at an ordinal of a lane: a few reads by key. Locks: none.
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
                    -- Of a result that a retry has put back, the whole line.
                    'message', left(a.message, 65536),
                    'not_before', a.not_before,
                    'created_at', a.created_at,
                    'times', CASE
                        WHEN a.held_seconds IS NOT NULL THEN jsonb_build_object(
                            'held', a.held_seconds, 'upstream', a.upstream_seconds, 'settling', a.settling_seconds
                        )
                    END
                )
                ORDER BY a.attempt, a.id
            )
            FROM batchline.retry_attempts AS a
            WHERE a.lane_id = q.lane_id AND a.ordinal = q.ordinal
        ),
        '[]'
    ) AS attempts,
    b.in_progress_at AS started_at,
    coalesce(q.finished_at, b.finalizing_at, now()) AS until,
    CASE
        WHEN r.held_seconds IS NOT NULL THEN jsonb_build_object(
            'held', r.held_seconds, 'upstream', r.upstream_seconds, 'settling', r.settling_seconds
        )
    END AS times,
    coalesce(r.task_id, q.task_id) AS task_id,
    CASE WHEN r.outcome = 'failed' THEN left(r.output, 65536) END AS output
FROM (
    SELECT *
    FROM batchline.requests
    WHERE batch_id = %(batch)s AND lane_id = %(lane)s AND ordinal = %(ordinal)s
    LIMIT 1
) AS q
JOIN batchline.batches AS b ON b.id = q.batch_id
LEFT JOIN batchline.results AS r ON r.lane_id = q.lane_id AND r.line_no = q.line_no

-- doctor_steps: check batches that run in steps: no fresh line can be claimed, what is held back and what may run add up, and a
-- next step is due exactly when everything that may run has ended. And that no other batch holds lines back.
--
-- Spans of batches that run in steps, and free spans; both are few.
WITH
batch AS (
    SELECT b.*, b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing
    FROM batchline.current_batches AS b
    WHERE b.finalizing_at IS NULL AND b.ended_at IS NULL AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
),
held AS (
    SELECT s.batch_id, sum(batchline.span_size(s.outstanding)) AS items
    FROM batchline.spans AS s
    WHERE s.worker_id IS NULL AND s.available_at = '9999-12-31 00:00:00+00'
    GROUP BY s.batch_id
),
stepped AS (
    SELECT b.*, coalesce(held.items, 0) + past.items AS held_back, past.open
    FROM batch AS b
    LEFT JOIN held ON held.batch_id = b.id
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(n.total - n.next), 0) AS items, count(*) FILTER (WHERE NOT n.drained) AS open
        FROM batchline.current_lanes AS n
        WHERE n.batch_id = b.id
    ) AS past
    WHERE b.step_total IS NOT NULL
),
finding AS (
    SELECT 'steps' AS name, id AS batch_id, format('%%s lanes have fresh lines to claim before their step begins', open) AS message
    FROM stepped
    WHERE open > 0
    UNION ALL
    SELECT 'steps', id, format('%%s of %%s lines may run, but %%s are held back', step_total, total, held_back)
    FROM stepped
    WHERE step_total + held_back + left_out <> total
    UNION ALL
    SELECT 'steps', id, 'all lines that may run have ended, but no next step is due: the batch is stuck'
    FROM stepped
    WHERE completed + failed >= step_total AND next_step_at IS NULL AND NOT closing
    UNION ALL
    SELECT 'steps', id, format('the next step is due, but only %%s of %%s lines have ended', completed + failed, step_total)
    FROM stepped
    WHERE completed + failed < step_total AND next_step_at IS NOT NULL
    UNION ALL
    SELECT 'steps', b.id, format('%%s lines are held back, but the batch does not run in steps', held.items)
    FROM batch AS b
    JOIN held ON held.batch_id = b.id
    WHERE b.step_total IS NULL
)
SELECT name, NULL::uuid AS file_id, batch_id, NULL::bigint AS lane_id, message
FROM finding
ORDER BY name, batch_id, message
LIMIT %(max_findings)s

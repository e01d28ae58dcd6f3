-- doctor_attempts: check that the history of attempts has no gaps and no duplicates, and that results and spans are one
-- attempt ahead of it: an item with two failed attempts waits, runs or has ended in its third. A reused answer has attempt 0
-- and no history.
--
-- Items that never failed have no history, so this is one pass over `results` plus small tables.
WITH
lane AS (
    SELECT n.id, n.batch_id
    FROM batchline.lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    -- A purge deletes rows in any order.
    WHERE b.purging_at IS NULL AND (%(batch)s::uuid IS NULL OR n.batch_id = %(batch)s::uuid)
),
item AS (
    SELECT a.lane_id, a.ordinal, count(*) AS attempts, max(a.attempt) AS last, count(DISTINCT a.attempt) AS kinds
    FROM batchline.retry_attempts AS a
    JOIN lane ON lane.id = a.lane_id
    GROUP BY a.lane_id, a.ordinal
),
broken AS (
    SELECT lane_id, format('%%s items have gaps or duplicates in their history of attempts', count(*)) AS message
    FROM item
    WHERE attempts <> last OR attempts <> kinds
    GROUP BY lane_id
),
unlike_result AS (
    SELECT
        r.lane_id,
        format('%%s results do not follow the last failed attempt of their item', count(*)) AS message
    FROM batchline.results AS r
    JOIN lane ON lane.id = r.lane_id
    LEFT JOIN item AS i ON i.lane_id = r.lane_id AND i.ordinal = r.ordinal
    WHERE r.attempt <> CASE r.attempt WHEN 0 THEN 0 ELSE 1 END + coalesce(i.attempts, 0)
    GROUP BY r.lane_id
),
unlike_span AS (
    SELECT
        s.lane_id,
        format('span %%s is at attempt %%s, which does not follow the failed attempts of its items', s.id, s.attempt)
            AS message
    FROM batchline.spans AS s
    JOIN lane ON lane.id = s.lane_id
    CROSS JOIN LATERAL (
        SELECT
            count(*) FILTER (WHERE a.attempt = s.attempt - 1) AS before,
            count(*) FILTER (WHERE a.attempt >= s.attempt) AS beyond
        FROM unnest(s.outstanding) AS piece
        JOIN batchline.retry_attempts AS a
            ON a.lane_id = s.lane_id AND a.ordinal >= lower(piece) AND a.ordinal < upper(piece)
    ) AS past
    WHERE past.beyond > 0 OR past.before <> CASE WHEN s.attempt > 1 THEN batchline.span_size(s.outstanding) ELSE 0 END
),
finding AS (
    SELECT * FROM broken
    UNION ALL
    SELECT * FROM unlike_result
    UNION ALL
    SELECT * FROM unlike_span
)
SELECT 'attempts' AS name, NULL::uuid AS file_id, lane.batch_id, lane.id AS lane_id, f.message
FROM finding AS f
JOIN lane ON lane.id = f.lane_id
ORDER BY lane.batch_id, lane.id, f.message
LIMIT %(max_findings)s

-- next_result: the first line number after `after` with a result of any outcome; NULL if there is none.
--
-- One lookup in the primary key per lane. Locks: none.
SELECT min(following.line_no)
FROM unnest(%(lanes)s::bigint[]) AS lane (id)
CROSS JOIN LATERAL (
    SELECT r.line_no
    FROM batchline.results AS r
    WHERE r.lane_id = lane.id AND r.line_no > %(after)s
    ORDER BY r.line_no
    LIMIT 1
) AS following

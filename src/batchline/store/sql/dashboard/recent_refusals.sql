-- recent_refusals: attempts of the last minute that were answered with 429, by routing key, among the newest 1,000 attempts that
-- failed. Cost: 1,000 rows from the end of a primary key, and a lane for each. Locks: none.
SELECT n.key, count(*)::integer
FROM (
    SELECT a.lane_id, a.error_code, a.created_at
    FROM batchline.retry_attempts AS a
    ORDER BY a.id DESC
    LIMIT 1000
) AS newest
CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = newest.lane_id LIMIT 1) AS n
WHERE newest.error_code = 'http_429' AND newest.created_at > now() - interval '1 minute' AND n.tenant = %(tenant)s
GROUP BY n.key

-- summarize: outcomes by status code, for the summary of a batch that is frozen.
SELECT r.outcome::text AS outcome, r.status_code, count(*)::integer AS items, max(r.attempt)::integer AS attempts
FROM batchline.lanes AS n
JOIN batchline.results AS r ON r.lane_id = n.id
WHERE n.batch_id = %(batch)s
GROUP BY r.outcome, r.status_code
ORDER BY r.outcome, r.status_code

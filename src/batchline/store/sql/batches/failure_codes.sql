-- failure_codes: how many failed results of a batch have which code, the most frequent codes first. Locks: none.
SELECT batchline.failure_code_v1(r.status_code, r.output) AS code, count(*)::integer AS lines
FROM batchline.lanes AS n
JOIN batchline.results AS r ON r.lane_id = n.id
WHERE n.batch_id = %(batch)s AND r.outcome = 'failed'
GROUP BY code
ORDER BY lines DESC, code
LIMIT %(limit)s

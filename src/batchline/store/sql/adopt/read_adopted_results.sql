-- read_adopted_results: the results of given items: to compare them with the old requests. Locks: none.
SELECT r.lane_id, r.line_no, r.outcome::text, r.output
FROM unnest(%(lanes)s::bigint[], %(line_nos)s::integer[]) AS wanted (lane_id, line_no)
JOIN batchline.results AS r ON r.lane_id = wanted.lane_id AND r.line_no = wanted.line_no

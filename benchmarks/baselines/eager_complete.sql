-- eager_complete: complete many requests, each with its response. Only claimed ones: the first verdict wins.
UPDATE requests AS r
SET state = 'completed', completed_at = now(), response_body = v.response_body
FROM unnest(%(ids)b::uuid[], %(outputs)b::text[]) AS v (id, response_body)
WHERE r.id = v.id AND r.state = 'claimed'

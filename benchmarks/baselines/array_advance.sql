-- array_advance: set the state of a drain that has finished all lines before `line`. More favourable than a real
-- drain, which would have rewritten each of these templates twice.
INSERT INTO requests (batch_id, template_id, state, daemon_id, claimed_at, completed_at, model, response_body)
SELECT %(batch)s, t.id, 'completed', %(batch)s, now(), now(), t.model, %(output)s
FROM request_templates AS t
WHERE t.line_number < %(line)s
  AND NOT EXISTS (SELECT FROM requests AS r WHERE r.batch_id = %(batch)s AND r.template_id = t.id)

-- array_kind_advance: set the state of a drain that has finished all lines before `line`.
WITH
done AS (
    UPDATE request_templates AS t
    SET batches_done_in = array_append(t.batches_done_in, %(batch)s::uuid)
    WHERE t.line_number < %(line)s AND NOT (%(batch)s::uuid = ANY (t.batches_done_in))
    RETURNING t.id, t.model
)
INSERT INTO requests (batch_id, template_id, state, daemon_id, claimed_at, completed_at, model, response_body)
SELECT %(batch)s, id, 'completed', %(batch)s, now(), now(), model, %(output)s
FROM done

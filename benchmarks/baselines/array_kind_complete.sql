-- array_kind_complete: the array design's completion (docs/why-not-the-array.md), for many requests at once and
-- with their responses. The batch moves from the array of active batches to that of done ones.
WITH
updated AS (
    UPDATE requests AS r
    SET state = 'completed', completed_at = now(), response_body = v.response_body
    FROM unnest(%(ids)b::uuid[], %(outputs)b::text[]) AS v (id, response_body)
    WHERE r.id = v.id AND r.state = 'claimed'
    RETURNING r.template_id, r.batch_id
)
UPDATE request_templates AS t
SET batches_active_in = array_remove(t.batches_active_in, u.batch_id),
    batches_done_in = array_append(t.batches_done_in, u.batch_id)
FROM updated AS u
WHERE t.id = u.template_id

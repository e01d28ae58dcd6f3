-- eager_create: create a batch with one pending request per template of its file.
WITH
batch AS (
    INSERT INTO batches (id, file_id, expires_at)
    VALUES (%(batch)s, '00000000-0000-7000-8000-000000000001', now() + interval '24 hours')
    RETURNING id, file_id
)
INSERT INTO requests (batch_id, template_id, state, custom_id, retry_attempt, model)
SELECT batch.id, t.id, 'pending', t.custom_id, 0, t.model
FROM batch
JOIN request_templates AS t ON t.file_id = batch.file_id

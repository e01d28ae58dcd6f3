-- One batch of 200 lines: 60 completed, 5 failed, 5 sent by a daemon that died, 10 tried before, 120 pending.
INSERT INTO files (name) VALUES ('input.jsonl');
INSERT INTO request_templates (file_id, custom_id, line_number, method, path, body, model)
SELECT id, 'line-' || n, n, 'POST', '/v1/chat/completions',
    format('{"model": "sim-small", "messages": [{"role": "user", "content": "Say %s."}]}', n), 'sim-small'
FROM files CROSS JOIN generate_series(1, 200) AS n;
INSERT INTO batches (file_id) SELECT id FROM files;
INSERT INTO requests (batch_id, template_id, custom_id, model)
SELECT b.id, t.id, t.custom_id, t.model FROM batches AS b JOIN request_templates AS t ON t.file_id = b.file_id;
UPDATE requests AS r
SET state = CASE WHEN n <= 60 THEN 'completed' WHEN n <= 65 THEN 'failed' WHEN n <= 70 THEN 'processing' ELSE 'pending' END,
    response_status = CASE WHEN n <= 60 THEN 200 END,
    response_body = CASE WHEN n <= 60 THEN '{"id": "old"}' END,
    completed_at = CASE WHEN n <= 60 THEN now() END,
    error = CASE WHEN n BETWEEN 61 AND 65 THEN 'bad request' END,
    failed_at = CASE WHEN n BETWEEN 61 AND 65 THEN now() END,
    daemon_id = CASE WHEN n BETWEEN 66 AND 70 THEN gen_random_uuid() END,
    claimed_at = CASE WHEN n BETWEEN 66 AND 70 THEN now() - interval '1 hour' END,
    started_at = CASE WHEN n BETWEEN 66 AND 70 THEN now() - interval '1 hour' END,
    retry_attempt = CASE WHEN n BETWEEN 71 AND 80 THEN 2 ELSE 0 END
FROM (SELECT id, line_number AS n FROM request_templates) AS t
WHERE t.id = r.template_id;

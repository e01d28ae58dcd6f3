-- list_chunks: the chunks of a batch, the newest first, for people. `waited`: for so many seconds it could have been taken, and no
-- worker has; null: a worker has it, or takes it later. No locks.
SELECT
    c.id, c.state, c.attempt, c.lines, c.bytes, c.provider_batch, c.outcome, c.missing, c.unknown, c.doubled, c.unreadable, c.error,
    c.created_at, c.submitted_at, c.ended_at,
    coalesce(s.submission = 'unknown', false) AS held,
    c.upstream, c.base_url, c.api,
    CASE
        WHEN c.state <> 'done' AND s.id IS NOT NULL AND coalesce(w.lease_until, c.due_at) < now()
            THEN extract(epoch FROM now() - coalesce(w.lease_until, c.due_at))::float8
    END AS waited
FROM batchline.provider_chunks AS c
LEFT JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s ON s.task_id = 'chunk:' || c.id
LEFT JOIN LATERAL (SELECT * FROM batchline.workers WHERE workers.id = s.worker_id LIMIT 1) AS w ON true
WHERE c.batch_id = %(batch)s
ORDER BY c.created_at DESC
LIMIT %(limit)s
